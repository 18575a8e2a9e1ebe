// nvcuda::wmma.
#pragma once
#include <stand_in/fragments.h>
