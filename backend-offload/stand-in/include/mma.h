// Tensor cores. CUDA keeps the declarations in crt/, which comes with another package; programs look for both.
#pragma once
#include <crt/mma.h>
