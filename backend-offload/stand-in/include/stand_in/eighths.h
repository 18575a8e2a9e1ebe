// Conversions of eight-bit floats, to nearest, ties to even.
#pragma once
#include <stand_in/narrow.h>

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

static inline __nv_fp8_storage_t stand_in_to_fp8(double x, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind) {
    const bool e4m3 = kind == __NV_E4M3;
    const int mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
    const int largest = e4m3 ? 0x7e : 0x7b;
    int sign = __builtin_signbit(x) ? 0x80 : 0;
    x = __builtin_fabs(x);
    if (x != x) return 0x7f | sign;
    int exponent = x == 0 ? 1 - bias : __builtin_ilogb(x);
    if (exponent < 1 - bias) exponent = 1 - bias;
    // Whole units of the last place; a carry moves into the exponent by itself.
    double units = exponent > 64 ? 1e9 : __builtin_rint(__builtin_ldexp(x, mantissa - exponent));
    long bits = (long)(units > 1e9 ? 1e9 : units) + ((long)(exponent + bias - 1) << mantissa);
    if (bits <= largest) return (__nv_fp8_storage_t)(bits | sign);
    if (saturation == __NV_SATFINITE) return (__nv_fp8_storage_t)(largest | sign);
    return (e4m3 ? 0x7f : 0x7c) | sign;
}
static inline float stand_in_from_fp8(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
    if (kind == __NV_E5M2) return stand_in_f16::widen((unsigned short)(x << 8));
    if ((x & 0x7f) == 0x7f) return __builtin_nanf("");
    // f16 has one exponent bit more, and a bias of 15 instead of 7.
    float magnitude = stand_in_f16::widen((unsigned short)((x & 0x7f) << 7)) * 256.0f;
    return x & 0x80 ? -magnitude : magnitude;
}

#define STAND_IN_CONVERSION(name, one, pair)                                                        \
    static inline __nv_fp8_storage_t __nv_cvt_##name##_to_fp8(one x, __nv_saturation_t s, __nv_fp8_interpretation_t k) { \
        return stand_in_to_fp8((double)x, s, k);                                                    \
    }                                                                                               \
    static inline __nv_fp8x2_storage_t __nv_cvt_##name##2_to_fp8x2(pair v, __nv_saturation_t s,     \
                                                                   __nv_fp8_interpretation_t k) {   \
        return (__nv_fp8x2_storage_t)(stand_in_to_fp8((double)v.x, s, k) | stand_in_to_fp8((double)v.y, s, k) << 8); \
    }
STAND_IN_CONVERSION(double, double, double2)
STAND_IN_CONVERSION(float, float, float2)
STAND_IN_CONVERSION(halfraw, __half, __half2)
STAND_IN_CONVERSION(bfloat16raw, __nv_bfloat16, __nv_bfloat162)
#undef STAND_IN_CONVERSION
static inline __half __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
    return stand_in_from_fp8(x, kind);
}
static inline __half2 __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t kind) {
    return {stand_in_from_fp8((__nv_fp8_storage_t)x, kind), stand_in_from_fp8((__nv_fp8_storage_t)(x >> 8), kind)};
}
