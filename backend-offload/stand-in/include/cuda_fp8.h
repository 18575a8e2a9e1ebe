// Eight-bit floats.
#pragma once
#include <stand_in/eighths.h>
