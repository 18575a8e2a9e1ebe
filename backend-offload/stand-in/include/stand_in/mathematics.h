// Mathematical functions. Fast variants are exact here, so the last bits differ from a GPU's.
#pragma once
#include <stand_in/language.h>

#define STAND_IN_UNARY(name)                                                                        \
    static inline float name(float x) { return __builtin_##name##f(x); }                            \
    static inline double name(double x) { return __builtin_##name(x); }
STAND_IN_UNARY(exp) STAND_IN_UNARY(exp2) STAND_IN_UNARY(expm1)
STAND_IN_UNARY(log) STAND_IN_UNARY(log2) STAND_IN_UNARY(log10) STAND_IN_UNARY(log1p)
STAND_IN_UNARY(sin) STAND_IN_UNARY(cos) STAND_IN_UNARY(tan)
STAND_IN_UNARY(sinh) STAND_IN_UNARY(cosh) STAND_IN_UNARY(tanh)
STAND_IN_UNARY(asin) STAND_IN_UNARY(acos) STAND_IN_UNARY(atan)
STAND_IN_UNARY(asinh) STAND_IN_UNARY(acosh) STAND_IN_UNARY(atanh)
STAND_IN_UNARY(sqrt) STAND_IN_UNARY(erf)
STAND_IN_UNARY(ceil) STAND_IN_UNARY(floor) STAND_IN_UNARY(trunc) STAND_IN_UNARY(rint) STAND_IN_UNARY(round)
#undef STAND_IN_UNARY

#define STAND_IN_BINARY(name)                                                                       \
    static inline float name(float x, float y) { return __builtin_##name##f(x, y); }                \
    static inline double name(double x, double y) { return __builtin_##name(x, y); }
STAND_IN_BINARY(pow) STAND_IN_BINARY(fmod) STAND_IN_BINARY(atan2)
STAND_IN_BINARY(hypot) STAND_IN_BINARY(copysign)
#undef STAND_IN_BINARY

static inline float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
static inline float rhypot(float x, float y) { return 1.0f / __builtin_hypotf(x, y); }
static inline double rhypot(double x, double y) { return 1.0 / __builtin_hypot(x, y); }
static inline float powf(float x, float y) { return __builtin_powf(x, y); }
static inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
static inline float norm3df(float x, float y, float z) { return __builtin_sqrtf(x * x + y * y + z * z); }

static inline float __expf(float x) { return __builtin_expf(x); }
static inline float __logf(float x) { return __builtin_logf(x); }
static inline float __sinf(float x) { return __builtin_sinf(x); }
static inline float __cosf(float x) { return __builtin_cosf(x); }
static inline float __tanhf(float x) { return __builtin_tanhf(x); }
static inline float __powf(float x, float y) { return __builtin_powf(x, y); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / __builtin_sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }

// If one argument is NaN, returns the other, as fmin and fmax do.
template <class A, class B> using stand_in_common = decltype(true ? A() : B());
template <class A, class B> static inline stand_in_common<A, B> min(A a, B b) {
    stand_in_common<A, B> x = a, y = b;
    return x < y || y != y ? x : y;
}
template <class A, class B> static inline stand_in_common<A, B> max(A a, B b) {
    stand_in_common<A, B> x = a, y = b;
    return x > y || y != y ? x : y;
}
static inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
static inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
static inline int abs(int x) { return x < 0 ? -x : x; }
static inline long abs(long x) { return x < 0 ? -x : x; }
static inline long long abs(long long x) { return x < 0 ? -x : x; }
static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isnan(double x) { return __builtin_isnan(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }

// Conversions to integers, as `cvt.rzi` of PTX: clamped to the range, NaN to a number. C++ leaves both undefined.
template <class I, class X> static inline I stand_in_clamped(X x) {
    const int bits = 8 * sizeof(I);
    const I most = I(~stand_in_word(0) >> (64 - bits + (I(-1) < I(0)))), least = -most - 1;
    const I none = sizeof(X) == 8 || bits == 64 ? I(stand_in_word(1) << (bits - 1)) : I(0);
    return x != x ? none : x >= X(most) ? most : x <= X(least) ? least : I(x);
}
// Registers have at least 32 bits; narrower integers are their low bits.
template <class I> struct stand_in_register { typedef I is; };
template <> struct stand_in_register<signed char> { typedef int is; };
template <> struct stand_in_register<short> { typedef int is; };
template <> struct stand_in_register<unsigned char> { typedef unsigned is; };
template <> struct stand_in_register<unsigned short> { typedef unsigned is; };

template <class I, class X> struct stand_in_conversion { static I of(X x) { return I(x); } };
template <class I> struct stand_in_conversion<I, float> {
    static I of(float x) { return I(stand_in_clamped<typename stand_in_register<I>::is>(x)); }
};
template <class I> struct stand_in_conversion<I, double> {
    static I of(double x) { return I(stand_in_clamped<typename stand_in_register<I>::is>(x)); }
};
// Takes the place of `I(x)` in translated kernels.
template <class I, class X> static inline I stand_in_integer(X x) { return stand_in_conversion<I, X>::of(x); }

static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(stand_in_word x) { return __builtin_popcountll(x); }
static inline stand_in_word __brevll(stand_in_word x) {
    stand_in_word reversed = 0;
    for (int bit = 0; bit < 64; bit++) reversed = reversed << 1 | (x >> bit & 1);
    return reversed;
}
static inline unsigned __brev(unsigned x) { return (unsigned)(__brevll(x) >> 32); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((stand_in_word)a * b >> 32); }
static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline stand_in_word __umul64hi(stand_in_word a, stand_in_word b) {
    return (stand_in_word)((unsigned __int128)a * b >> 64);
}
