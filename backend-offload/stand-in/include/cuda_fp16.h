// __half and __half2.
#pragma once
#include <stand_in/narrow.h>
