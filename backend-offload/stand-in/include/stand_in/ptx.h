// Instructions of CubeCL's inline PTX, called by src/kernels/ptx.rs. Their layouts are the PTX ISA's.
#pragma once
#include <stand_in/asynchronous.h>
#include <stand_in/eighths.h>
#include <stand_in/products.h>

namespace stand_in_ptx {

template <class T> static inline unsigned bits(T x) {
    static_assert(sizeof(T) == 4, "a register has 32 bits");
    unsigned all;
    __builtin_memcpy(&all, &x, 4);
    return all;
}

// Element types in registers: bytes, and the type of their products.
template <class F> struct half_word {
    enum { bytes = 2 };
    typedef float wide;
    static float widen(unsigned bits) { return F::widen((unsigned short)bits); }
};
typedef half_word<stand_in_f16> f16;
typedef half_word<stand_in_bf16> bf16;
struct tf32 { // the low 13 bits do not count
    enum { bytes = 4 };
    typedef float wide;
    static float widen(unsigned bits) {
        float x;
        bits &= ~0x1fffu;
        __builtin_memcpy(&x, &bits, 4);
        return x;
    }
};
struct s8 {
    enum { bytes = 1 };
    typedef unsigned wide;
    static unsigned widen(unsigned bits) { return (unsigned)(int)(signed char)bits; }
};
struct u8 {
    enum { bytes = 1 };
    typedef unsigned wide;
    static unsigned widen(unsigned bits) { return bits & 0xff; }
};
template <__nv_fp8_interpretation_t Kind> struct eighth {
    enum { bytes = 1 };
    typedef float wide;
    static float widen(unsigned bits) { return stand_in_from_fp8((__nv_fp8_storage_t)bits, Kind); }
};
typedef eighth<__NV_E4M3> e4m3;
typedef eighth<__NV_E5M2> e5m2;

struct mma_turn {
    unsigned in[10], out[4];
    bool done;
};

template <int K, class A, class B> static void multiply(const stand_in_turns<mma_turn> &turns) {
    typedef typename A::wide wide;
    enum { per = 4 / A::bytes, as = K / (2 * per), bs = K / (4 * per) };
    wide a[16][K] = {}, b[K][8] = {}, sum[16][8] = {};
    for (int lane = 0; lane < 32; lane++) {
        if (!turns.of[lane]) continue;
        const unsigned *in = turns.of[lane]->in;
        int group = lane / 4, member = lane % 4;
        for (int r = 0; r < as; r++)
            for (int e = 0; e < per; e++)
                a[group + 8 * (r & 1)][member * per + e + 4 * per * (r >> 1)] = A::widen(in[r] >> 8 * A::bytes * e);
        for (int r = 0; r < bs; r++)
            for (int e = 0; e < per; e++)
                b[member * per + e + 4 * per * r][group] = B::widen(in[as + r] >> 8 * B::bytes * e);
        for (int i = 0; i < 4; i++)
            __builtin_memcpy(&sum[group + 8 * (i >> 1)][2 * member + (i & 1)], &in[as + bs + i], 4);
    }
    stand_in_multiply(a, b, sum);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; turns.of[lane] && i < 4; i++)
            __builtin_memcpy(&turns.of[lane]->out[i], &sum[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)], 4);
    stand_in_driver->executed(STAND_IN_MMA);
}

template <int K, class A, class B, class D, class... In>
static inline void mma(D &d0, D &d1, D &d2, D &d3, const In &...in) {
    static_assert(sizeof...(In) == 4 + K * A::bytes / 8 + K * B::bytes / 16, "registers of the shape");
    mma_turn mine = {{bits(in)...}, {}, false};
    stand_in_turns<mma_turn> turns;
    if (stand_in_meet(mine, turns)) multiply<K, A, B>(turns);
    D *d[4] = {&d0, &d1, &d2, &d3};
    for (int i = 0; i < 4; i++) __builtin_memcpy(d[i], &mine.out[i], 4);
}

// Tiles of eight rows of 16 bytes: lane 8 m + r has the address of row r of tile m.
struct tile_turn {
    unsigned row, words[4];
    bool done;
};
static inline unsigned short *tile_element(const stand_in_turns<tile_turn> &turns, int tile, int lane, int half,
                                           bool transposed) {
    int row = lane / 4, column = 2 * (lane % 4) + half;
    tile_turn *turn = turns.of[8 * tile + (transposed ? column : row)];
    return turn ? (unsigned short *)stand_in_shared(turn->row) + (transposed ? row : column) : nullptr;
}
static inline void move_tiles(const stand_in_turns<tile_turn> &turns, int tiles, bool transposed, bool load) {
    for (int tile = 0; tile < tiles; tile++)
        for (int lane = 0; lane < 32; lane++)
            for (int half = 0; turns.of[lane] && half < 2; half++) {
                unsigned short *there = tile_element(turns, tile, lane, half, transposed);
                char *here = (char *)&turns.of[lane]->words[tile] + 2 * half;
                if (there) load ? __builtin_memcpy(here, there, 2) : __builtin_memcpy(there, here, 2);
            }
    stand_in_driver->executed(load ? STAND_IN_LDMATRIX : STAND_IN_STMATRIX);
}
template <bool Transposed, class... R> static inline void ldmatrix(unsigned row, R &...registers) {
    tile_turn mine = {row, {}, false};
    stand_in_turns<tile_turn> turns;
    if (stand_in_meet(mine, turns)) move_tiles(turns, sizeof...(R), Transposed, true);
    int tile = 0;
    ((registers = mine.words[tile++]), ...);
}
template <bool Transposed, class... R> static inline void stmatrix(unsigned row, const R &...registers) {
    tile_turn mine = {row, {registers...}, false};
    stand_in_turns<tile_turn> turns;
    if (stand_in_meet(mine, turns)) move_tiles(turns, sizeof...(R), Transposed, false);
}

static inline void cp_async(unsigned to, stand_in_word from, unsigned bytes, unsigned valid) {
    stand_in_copy(stand_in_shared(to), (const void *)from, bytes, valid);
}
static inline void cp_async_arrive(unsigned barrier) {
    stand_in_arrive_after_copies((stand_in_mbarrier *)stand_in_shared(barrier));
}

// Coordinates, the barrier, and the filter's offsets follow the map.
template <unsigned Rank, class... I> static inline void load_im2col(unsigned to, stand_in_word map, I... rest) {
    static_assert(sizeof...(I) == 2 * Rank - 1, "coordinates, barrier and offsets of the rank");
    int numbers[] = {(int)rest...};
    auto *barrier = (stand_in_mbarrier *)stand_in_shared((unsigned)numbers[Rank]);
    auto &copy = stand_in_tensor(stand_in_later::IM2COL, (const void *)map, numbers, Rank, barrier);
    copy.to = stand_in_shared(to);
    for (unsigned i = 0; i + 2 < Rank; i++) copy.offsets[i] = (unsigned short)numbers[Rank + 1 + i];
    stand_in_driver->executed(STAND_IN_TENSOR_IM2COL);
}

// One lane of the warp, the same each time.
static inline void elect(unsigned &elected) {
    const stand_in_word *slots;
    unsigned came = stand_in_driver->warp_exchange(~0u, 0, &slots);
    elected = (unsigned)__builtin_ctz(came) == stand_in_lane();
    if (elected) stand_in_driver->executed(STAND_IN_ELECT);
}

static inline void saturate(int &result, long long exact) {
    result = exact > 0x7fffffffll ? 0x7fffffff : exact < -0x80000000ll ? (int)-0x80000000ll : (int)exact;
}
static inline void add_saturating(int &result, int a, int b) { saturate(result, (long long)a + b); }
static inline void sub_saturating(int &result, int a, int b) { saturate(result, (long long)a - b); }

}
