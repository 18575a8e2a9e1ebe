// Fragments of a matrix, spread over the lanes of a warp. CUDA does not specify its order; this one is our own.
#pragma once
#include <stand_in/narrow.h>

namespace nvcuda { namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32; }

template <class T> struct stand_in_stored { typedef T is; };
template <> struct stand_in_stored<precision::tf32> { typedef float is; };

template <class Use, int M, int N, int K> struct stand_in_shape;
template <int M, int N, int K> struct stand_in_shape<matrix_a, M, N, K> { enum { rows = M, columns = K }; };
template <int M, int N, int K> struct stand_in_shape<matrix_b, M, N, K> { enum { rows = K, columns = N }; };
template <int M, int N, int K> struct stand_in_shape<accumulator, M, N, K> { enum { rows = M, columns = N }; };

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
    typedef typename stand_in_stored<T>::is element;
    enum { rows = stand_in_shape<Use, M, N, K>::rows, columns = stand_in_shape<Use, M, N, K>::columns };
    enum { num_elements = rows * columns / 32 };
    element x[num_elements];
};

template <class L> struct stand_in_is_row { static const bool is = false; };
template <> struct stand_in_is_row<row_major> { static const bool is = true; };

// Ten bits of mantissa.
static inline float __float_to_tf32(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

template <class F, class V> static inline void fill_fragment(F &f, V value) {
    for (auto &x : f.x) x = typename F::element(value);
}

// Offset of this lane's n-th element in memory.
template <class F> static inline unsigned stand_in_offset(int n, unsigned stride, bool row_major) {
    unsigned element = stand_in_lane() * F::num_elements + n;
    unsigned row = element / F::columns, column = element % F::columns;
    return row_major ? row * stride + column : column * stride + row;
}
template <class F, class P> static inline void stand_in_load(F &f, const P *from, unsigned stride, bool row_major) {
    for (int n = 0; n < F::num_elements; n++) f.x[n] = from[stand_in_offset<F>(n, stride, row_major)];
    __syncwarp();
}
template <class U, int M, int N, int K, class T, class L, class P>
static inline void load_matrix_sync(fragment<U, M, N, K, T, L> &f, const P *from, unsigned stride) {
    stand_in_load(f, from, stride, stand_in_is_row<L>::is);
}
template <int M, int N, int K, class T, class P>
static inline void load_matrix_sync(fragment<accumulator, M, N, K, T> &f, const P *from, unsigned stride,
                                    layout_t layout) {
    stand_in_load(f, from, stride, layout == mem_row_major);
}
template <int M, int N, int K, class T, class P>
static inline void store_matrix_sync(P *to, const fragment<accumulator, M, N, K, T> &f, unsigned stride,
                                     layout_t layout) {
    typedef fragment<accumulator, M, N, K, T> F;
    for (int n = 0; n < F::num_elements; n++) to[stand_in_offset<F>(n, stride, layout == mem_row_major)] = f.x[n];
    __syncwarp();
}

// Lanes exchange the addresses of their fragments.
template <class F> static inline void stand_in_gather(const F &mine, const F **all) {
    const stand_in_word *slots;
    stand_in_driver->warp_exchange(~0u, (stand_in_word)&mine, &slots);
    __builtin_memcpy(all, slots, 32 * sizeof *all);
}
// Sums are at least as wide as float, or as int for integers.
template <class F> static inline float stand_in_wide(stand_in_narrow<F> x) { return x; }
static inline float stand_in_wide(float x) { return x; }
static inline double stand_in_wide(double x) { return x; }
static inline int stand_in_wide(int x) { return x; }

template <class D, class A, class B, class C>
static inline void mma_sync(D &d, const A &a, const B &b, const C &c) {
    const A *as[32];
    const B *bs[32];
    stand_in_gather(a, as);
    stand_in_gather(b, bs);
    D result;
    for (int n = 0; n < D::num_elements; n++) {
        unsigned element = stand_in_lane() * D::num_elements + n;
        unsigned row = element / D::columns, column = element % D::columns;
        auto sum = stand_in_wide(c.x[n]);
        for (unsigned k = 0; k < A::columns; k++) {
            unsigned at_a = row * A::columns + k, at_b = k * B::columns + column;
            sum += stand_in_wide(as[at_a / A::num_elements]->x[at_a % A::num_elements]) *
                   stand_in_wide(bs[at_b / B::num_elements]->x[at_b % B::num_elements]);
        }
        result.x[n] = sum;
    }
    __syncwarp(); // no lane changes a fragment that another still reads
    d = result;
}

}}
