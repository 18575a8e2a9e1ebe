// __nv_bfloat16 and __nv_bfloat162.
#pragma once
#include <stand_in/narrow.h>
