// Qualifiers, vector types, thread positions, and the interface between kernel and driver.
#pragma once

typedef unsigned long long stand_in_word;
typedef __SIZE_TYPE__ size_t;

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
// Dynamic shared memory is `extern` and defined after the kernel. Static shared memory is one variable, because one
// block runs at a time.
#define __shared__ static

#define STAND_IN_VECTOR(T, name)                                                                    \
    struct name##1 { T x; };                                                                        \
    struct __align__(2 * sizeof(T)) name##2 { T x, y; };                                            \
    struct name##3 { T x, y, z; };                                                                  \
    struct __align__(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; };                 \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                               \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                       \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
STAND_IN_VECTOR(signed char, char)
STAND_IN_VECTOR(unsigned char, uchar)
STAND_IN_VECTOR(short, short)
STAND_IN_VECTOR(unsigned short, ushort)
STAND_IN_VECTOR(int, int)
STAND_IN_VECTOR(unsigned int, uint)
STAND_IN_VECTOR(long, long)
STAND_IN_VECTOR(unsigned long, ulong)
STAND_IN_VECTOR(long long, longlong)
STAND_IN_VECTOR(unsigned long long, ulonglong)
STAND_IN_VECTOR(float, float)
STAND_IN_VECTOR(double, double)
#undef STAND_IN_VECTOR
struct dim3 { unsigned x, y, z; };

// ---- Shared with the driver: same layouts as in src/fibers.rs and src/kernels/object.rs ----

struct stand_in_position {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    stand_in_word serial; // another number for each block whose threads wait for each other
};
struct stand_in_services {
    void (*barrier)();
    // Waits for the lanes of the mask; `slots` then points to their values. Returns the lanes that arrived.
    unsigned (*warp_exchange)(unsigned mask, stand_in_word value, const stand_in_word **slots);
    void (*absent_lane)();
    unsigned (*active)();
    // Suspends the thread until the condition holds; any thread may evaluate it.
    void (*wait_until)(bool (*holds)(void *), void *of);
    // Lets the warp's other lanes reach their next wait; those at the first place go on first.
    void (*turn)(unsigned place);
    void (*executed)(unsigned instruction);
};
// Instructions that the report counts, in the order of `INSTRUCTIONS` in src/report.rs.
enum stand_in_instruction {
    STAND_IN_MMA, STAND_IN_WMMA, STAND_IN_LDMATRIX, STAND_IN_STMATRIX, STAND_IN_CP_ASYNC, STAND_IN_BULK,
    STAND_IN_TENSOR_LOAD, STAND_IN_TENSOR_IM2COL, STAND_IN_TENSOR_STORE, STAND_IN_ELECT,
};
struct stand_in_object {
    const char *name;
    unsigned parameters;
    bool waits; // threads wait for each other
    const unsigned *sizes;
    const unsigned char *kinds; // 0 value, 1 pointer, 2 pointer to const
    unsigned char *shared;
    unsigned *places;
    stand_in_position *(*bind)(const stand_in_services *);
    void (*thread)(void **);
    void (*grid)(void **);
};

static stand_in_position stand_in_at;
static const stand_in_services *stand_in_driver;
#define threadIdx (stand_in_at.thread)
#define blockIdx (stand_in_at.block)
#define blockDim (stand_in_at.block_dim)
#define gridDim (stand_in_at.grid_dim)
static const int warpSize = 32;

template <class T> struct stand_in_kind { static const unsigned char is = 0; };
template <class T> struct stand_in_kind<T *> { static const unsigned char is = 1; };
template <class T> struct stand_in_kind<const T *> { static const unsigned char is = 2; };

template <class T> struct stand_in_plain { typedef T is; };
template <class T> struct stand_in_plain<const T> { typedef T is; };
template <class T> struct stand_in_plain<T *__restrict__> { typedef T *is; };

template <unsigned... I> struct stand_in_indices {};
template <unsigned N, unsigned... I> struct stand_in_count : stand_in_count<N - 1, N - 1, I...> {};
template <unsigned... I> struct stand_in_count<0, I...> { typedef stand_in_indices<I...> is; };

template <auto K> struct stand_in_entry;
template <class... A, void (*K)(A...)> struct stand_in_entry<K> {
    static constexpr unsigned count = sizeof...(A);
    static constexpr unsigned sizes[count + 1] = {sizeof(A)..., 0};
    static constexpr unsigned char kinds[count + 1] = {stand_in_kind<typename stand_in_plain<A>::is>::is..., 0};

    template <unsigned... I> static inline void call(void **arguments, stand_in_indices<I...>) {
        K(*(typename stand_in_plain<A>::is *)arguments[I]...);
    }
    static void thread(void **arguments) { call(arguments, typename stand_in_count<count>::is()); }

    static stand_in_position *bind(const stand_in_services *services) {
        stand_in_driver = services;
        return &stand_in_at;
    }
    // For kernels in which no thread waits for another: a grid is a loop.
    static void grid(void **arguments) {
        const dim3 blocks = gridDim, threads = blockDim;
        for (unsigned bz = 0; bz < blocks.z; bz++)
        for (unsigned by = 0; by < blocks.y; by++)
        for (unsigned bx = 0; bx < blocks.x; bx++)
        for (unsigned tz = 0; tz < threads.z; tz++)
        for (unsigned ty = 0; ty < threads.y; ty++)
        for (unsigned tx = 0; tx < threads.x; tx++) {
            stand_in_at.block = {bx, by, bz};
            stand_in_at.thread = {tx, ty, tz};
            thread(arguments);
        }
    }
};

// `stand_in_places` is defined at the top of each translated kernel. One function is compiled: a thread or a whole grid.
#define STAND_IN_KERNEL(function, waits, shared)                                                    \
    extern "C" __attribute__((visibility("default"))) const stand_in_object stand_in_kernel = {     \
        #function, stand_in_entry<function>::count, waits, stand_in_entry<function>::sizes,         \
        stand_in_entry<function>::kinds, shared, stand_in_places, stand_in_entry<function>::bind,   \
        (waits) ? stand_in_entry<function>::thread : nullptr,                                       \
        (waits) ? nullptr : stand_in_entry<function>::grid};
