// Tensor cores. CUDA ships the declarations in crt/, in another package; programs look for both.
#pragma once
#include <crt/mma.h>
