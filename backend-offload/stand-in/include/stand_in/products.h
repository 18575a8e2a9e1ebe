// Matrix products of a warp. One lane works for all: the first that continues after the exchange.
#pragma once
#include <stand_in/threads.h>

// Adds a product to `sum`, in float or modulo 2^32, each element's terms in the order of k.
template <int M, int N, int K, class T>
static inline void stand_in_multiply(const T (&a)[M][K], const T (&b)[K][N], T (&sum)[M][N]) {
    typedef T row __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias));
    for (int i = 0; i < M; i++) {
        row all = *(const row *)sum[i];
        for (int k = 0; k < K; k++) all += a[i][k] * *(const row *)b[k];
        *(row *)sum[i] = all;
    }
}

// The lanes' turns at an instruction; null for absent ones.
template <class Turn> struct stand_in_turns { Turn *of[32]; };

// True for the one lane that has to do the work.
template <class Turn> static inline bool stand_in_meet(Turn &mine, stand_in_turns<Turn> &turns) {
    mine.done = false;
    const stand_in_word *slots;
    unsigned came = stand_in_driver->warp_exchange(~0u, (stand_in_word)&mine, &slots);
    if (*(volatile bool *)&mine.done) return false;
    if (came != ~0u) stand_in_driver->absent_lane();
    for (int lane = 0; lane < 32; lane++) {
        turns.of[lane] = came >> lane & 1 ? (Turn *)slots[lane] : nullptr;
        if (turns.of[lane]) turns.of[lane]->done = true;
    }
    return true;
}
