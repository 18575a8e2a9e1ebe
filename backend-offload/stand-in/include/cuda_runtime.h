// The device side of CUDA for the system's C++ compiler, as far as CubeCL's generated kernels use it.
//
// Includes no standard header, so that a kernel compiles in a fraction of a second.
#pragma once
#include <stand_in/language.h>
#include <stand_in/threads.h>
#include <stand_in/atomics.h>
#include <stand_in/mathematics.h>
