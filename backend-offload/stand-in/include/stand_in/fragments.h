// Fragments of a matrix, spread over the lanes of a warp. CUDA does not specify its order; this one is our own.
#pragma once
#include <stand_in/narrow.h>
#include <stand_in/products.h>

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
    typedef T type;
    typedef typename stand_in_stored<T>::is element;
    enum { rows = stand_in_shape<Use, M, N, K>::rows, columns = stand_in_shape<Use, M, N, K>::columns };
    enum { num_elements = rows * columns / 32 };
    element x[num_elements];
};

template <class L> struct stand_in_is_row { static const bool is = false; };
template <> struct stand_in_is_row<row_major> { static const bool is = true; };

// Ten bits of mantissa, to nearest, ties away from zero, as `cvt.rna` of PTX.
static inline float __float_to_tf32(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    bits = x != x ? 0x7fffffff : (bits + 0x1000) & ~0x1fffu;
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
    __syncwarp();
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
    __syncwarp(); // no lane overwrites what another still reads
    for (int n = 0; n < F::num_elements; n++) to[stand_in_offset<F>(n, stride, layout == mem_row_major)] = f.x[n];
    __syncwarp();
}

// Sums are at least as wide as float, or as int for integers.
template <class F> static inline float stand_in_wide(stand_in_narrow<F> x) { return x; }
static inline float stand_in_wide(float x) { return x; }
static inline double stand_in_wide(double x) { return x; }
static inline int stand_in_wide(int x) { return x; }

// Tensor cores ignore the low 13 bits of a tf32.
template <class T> struct stand_in_seen {
    template <class X> static auto of(X x) { return stand_in_wide(x); }
};
template <> struct stand_in_seen<precision::tf32> {
    static float of(float x) {
        unsigned bits;
        __builtin_memcpy(&bits, &x, 4);
        bits &= ~0x1fffu;
        __builtin_memcpy(&x, &bits, 4);
        return x;
    }
};

template <class D, class A, class B, class C> struct stand_in_product_turn {
    D *d;
    const A *a;
    const B *b;
    const C *c;
    bool done;
};
template <class D, class A, class B, class C>
static void stand_in_product(const stand_in_turns<stand_in_product_turn<D, A, B, C>> &turns) {
    enum { rows = D::rows, columns = D::columns, depth = A::columns };
    typedef decltype(stand_in_wide(turns.of[0]->c->x[0])) wide;
    wide a[rows][depth] = {}, b[depth][columns] = {}, sum[rows][columns] = {};
    for (int lane = 0; lane < 32; lane++) {
        auto *turn = turns.of[lane];
        if (!turn) continue;
        for (int n = 0; n < A::num_elements; n++)
            (&a[0][0])[lane * A::num_elements + n] = stand_in_seen<typename A::type>::of(turn->a->x[n]);
        for (int n = 0; n < B::num_elements; n++)
            (&b[0][0])[lane * B::num_elements + n] = stand_in_seen<typename B::type>::of(turn->b->x[n]);
        for (int n = 0; n < C::num_elements; n++)
            (&sum[0][0])[lane * C::num_elements + n] = stand_in_wide(turn->c->x[n]);
    }
    stand_in_multiply(a, b, sum);
    for (int lane = 0; lane < 32; lane++)
        for (int n = 0; turns.of[lane] && n < D::num_elements; n++)
            turns.of[lane]->d->x[n] = (&sum[0][0])[lane * D::num_elements + n];
    stand_in_driver->executed(STAND_IN_WMMA);
}
template <class D, class A, class B, class C>
static inline void mma_sync(D &d, const A &a, const B &b, const C &c) {
    stand_in_product_turn<D, A, B, C> mine = {&d, &a, &b, &c, false};
    stand_in_turns<stand_in_product_turn<D, A, B, C>> turns;
    if (stand_in_meet(mine, turns)) stand_in_product(turns);
}

}}
