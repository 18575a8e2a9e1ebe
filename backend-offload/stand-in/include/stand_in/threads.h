// Barriers, and exchanges between the lanes of a warp.
#pragma once
#include <stand_in/language.h>

static inline void __syncthreads() { stand_in_driver->barrier(); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __syncwarp(unsigned mask = ~0u) {
    const stand_in_word *slots;
    stand_in_driver->warp_exchange(mask, 0, &slots);
}
static inline void stand_in_turn(unsigned place) { stand_in_driver->turn(place); }
static inline unsigned __activemask() { return stand_in_driver->active(); }

static inline unsigned stand_in_lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}

// The value of lane `from`. If that lane does not arrive, a GPU returns anything; here, the caller's own value.
template <class T> static inline T stand_in_exchange(unsigned mask, T value, unsigned from) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most eight bytes");
    stand_in_word bits = 0;
    const stand_in_word *slots;
    __builtin_memcpy(&bits, &value, sizeof(T));
    unsigned came = stand_in_driver->warp_exchange(mask, bits, &slots);
    if (!(came >> from & 1)) {
        stand_in_driver->absent_lane();
        return value;
    }
    T result;
    __builtin_memcpy(&result, &slots[from], sizeof(T));
    return result;
}

// `width` divides the warp into segments; outside its own segment, a lane reads its own value.
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    unsigned lane = stand_in_lane();
    return stand_in_exchange(mask, value, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    unsigned lane = stand_in_lane(), from = lane ^ bits;
    return stand_in_exchange(mask, value, from > (lane | (width - 1)) ? lane : from);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    unsigned lane = stand_in_lane();
    return stand_in_exchange(mask, value, (lane & (width - 1)) < by ? lane : lane - by);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    unsigned lane = stand_in_lane();
    return stand_in_exchange(mask, value, (lane & (width - 1)) + by >= (unsigned)width ? lane : lane + by);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    const stand_in_word *slots;
    unsigned came = stand_in_driver->warp_exchange(mask, predicate != 0, &slots), votes = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (came >> lane & 1 && slots[lane]) votes |= 1u << lane;
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
