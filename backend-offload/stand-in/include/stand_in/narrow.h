// __half and __nv_bfloat16: two bytes in memory, computed as float and rounded after each operation, as on a GPU.
#pragma once
#include <cuda_runtime.h>

struct stand_in_f16 {
    static float widen(unsigned short bits) {
        _Float16 value;
        __builtin_memcpy(&value, &bits, 2);
        return (float)value;
    }
    static unsigned short narrow(float x) {
        _Float16 value = (_Float16)x;
        unsigned short bits;
        __builtin_memcpy(&bits, &value, 2);
        return bits;
    }
};
struct stand_in_bf16 {
    static float widen(unsigned short bits) {
        unsigned wide = (unsigned)bits << 16;
        float value;
        __builtin_memcpy(&value, &wide, 4);
        return value;
    }
    // To nearest, ties to even.
    static unsigned short narrow(float x) {
        unsigned wide;
        __builtin_memcpy(&wide, &x, 4);
        if (x != x) return 0x7fff;
        return (unsigned short)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
};

template <class F> struct stand_in_narrow {
    unsigned short bits;
    stand_in_narrow() = default;
    template <class T> stand_in_narrow(T x) : bits(F::narrow((float)x)) {}
    operator float() const { return F::widen(bits); }

    friend stand_in_narrow operator+(stand_in_narrow a, stand_in_narrow b) { return (float)a + (float)b; }
    friend stand_in_narrow operator-(stand_in_narrow a, stand_in_narrow b) { return (float)a - (float)b; }
    friend stand_in_narrow operator*(stand_in_narrow a, stand_in_narrow b) { return (float)a * (float)b; }
    friend stand_in_narrow operator/(stand_in_narrow a, stand_in_narrow b) { return (float)a / (float)b; }
    friend stand_in_narrow operator-(stand_in_narrow a) { return -(float)a; }
    stand_in_narrow &operator+=(stand_in_narrow other) { return *this = *this + other; }
    stand_in_narrow &operator-=(stand_in_narrow other) { return *this = *this - other; }
    stand_in_narrow &operator*=(stand_in_narrow other) { return *this = *this * other; }
    stand_in_narrow &operator/=(stand_in_narrow other) { return *this = *this / other; }

    friend bool operator<(stand_in_narrow a, stand_in_narrow b) { return (float)a < (float)b; }
    friend bool operator>(stand_in_narrow a, stand_in_narrow b) { return (float)a > (float)b; }
    friend bool operator<=(stand_in_narrow a, stand_in_narrow b) { return (float)a <= (float)b; }
    friend bool operator>=(stand_in_narrow a, stand_in_narrow b) { return (float)a >= (float)b; }
    friend bool operator==(stand_in_narrow a, stand_in_narrow b) { return (float)a == (float)b; }
    friend bool operator!=(stand_in_narrow a, stand_in_narrow b) { return (float)a != (float)b; }
};

template <class I, class F> struct stand_in_conversion<I, stand_in_narrow<F>> {
    static I of(stand_in_narrow<F> x) { return stand_in_conversion<I, float>::of(x); }
};

template <class F> struct __align__(4) stand_in_narrow2 {
    stand_in_narrow<F> x, y;
    friend stand_in_narrow2 operator+(stand_in_narrow2 a, stand_in_narrow2 b) { return {a.x + b.x, a.y + b.y}; }
    friend stand_in_narrow2 operator-(stand_in_narrow2 a, stand_in_narrow2 b) { return {a.x - b.x, a.y - b.y}; }
    friend stand_in_narrow2 operator*(stand_in_narrow2 a, stand_in_narrow2 b) { return {a.x * b.x, a.y * b.y}; }
    friend stand_in_narrow2 operator/(stand_in_narrow2 a, stand_in_narrow2 b) { return {a.x / b.x, a.y / b.y}; }
};

// Defines `one` for one number and `two` for a pair, both by `call`.
#define STAND_IN_UNARY(R, one, two, call)                                                           \
    template <class F> static inline R one(stand_in_narrow<F> x) { return call((float)x); }         \
    template <class F> static inline stand_in_narrow2<F> two(stand_in_narrow2<F> v) {               \
        return {call((float)v.x), call((float)v.y)};                                                \
    }
#define STAND_IN_NAMED(name) STAND_IN_UNARY(stand_in_narrow<F>, h##name, h2##name, name)
STAND_IN_NAMED(exp) STAND_IN_NAMED(log) STAND_IN_NAMED(sin) STAND_IN_NAMED(cos) STAND_IN_NAMED(sqrt)
STAND_IN_NAMED(rsqrt) STAND_IN_NAMED(ceil) STAND_IN_NAMED(floor) STAND_IN_NAMED(trunc) STAND_IN_NAMED(rint)
STAND_IN_UNARY(stand_in_narrow<F>, __habs, __habs2, abs)
#undef STAND_IN_NAMED
#undef STAND_IN_UNARY

#define STAND_IN_BINARY(one, two, call)                                                             \
    template <class F> static inline stand_in_narrow<F> one(stand_in_narrow<F> a, stand_in_narrow<F> b) {     \
        return call((float)a, (float)b);                                                            \
    }                                                                                               \
    template <class F> static inline stand_in_narrow2<F> two(stand_in_narrow2<F> a, stand_in_narrow2<F> b) {  \
        return {one(a.x, b.x), one(a.y, b.y)};                                                      \
    }
STAND_IN_BINARY(__hmax, __hmax2, max)
STAND_IN_BINARY(__hmin, __hmin2, min)
#undef STAND_IN_BINARY

template <class F> static inline bool __hisnan(stand_in_narrow<F> x) { return isnan((float)x); }
template <class F> static inline bool __hisinf(stand_in_narrow<F> x) { return isinf((float)x); }
template <class F>
static inline stand_in_narrow<F> fma(stand_in_narrow<F> a, stand_in_narrow<F> b, stand_in_narrow<F> c) {
    return fma((float)a, (float)b, (float)c);
}
template <class F>
static inline stand_in_narrow2<F> fma(stand_in_narrow2<F> a, stand_in_narrow2<F> b, stand_in_narrow2<F> c) {
    return {fma(a.x, b.x, c.x), fma(a.y, b.y, c.y)};
}

typedef stand_in_narrow<stand_in_f16> __half;
typedef stand_in_narrow2<stand_in_f16> __half2;
typedef stand_in_narrow<stand_in_bf16> __nv_bfloat16;
typedef stand_in_narrow2<stand_in_bf16> __nv_bfloat162;
