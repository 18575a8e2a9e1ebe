// Atomic operations. Fibers switch only where a thread waits, so plain operations are atomic.
#pragma once
#include <stand_in/language.h>

// Excludes an argument from the deduction of T.
template <class T> struct stand_in_same { typedef T is; };

#define STAND_IN_ATOMIC(name, result)                                                               \
    template <class T> static inline T name(T *at, typename stand_in_same<T>::is value) {           \
        T old = *at;                                                                                \
        *at = result;                                                                               \
        return old;                                                                                 \
    }
STAND_IN_ATOMIC(atomicAdd, old + value)
STAND_IN_ATOMIC(atomicSub, old - value)
STAND_IN_ATOMIC(atomicAnd, old & value)
STAND_IN_ATOMIC(atomicOr, old | value)
STAND_IN_ATOMIC(atomicXor, old ^ value)
STAND_IN_ATOMIC(atomicMin, old < value ? old : value)
STAND_IN_ATOMIC(atomicMax, old > value ? old : value)
STAND_IN_ATOMIC(atomicExch, value)
#undef STAND_IN_ATOMIC

template <class T>
static inline T atomicCAS(T *at, typename stand_in_same<T>::is expected, typename stand_in_same<T>::is value) {
    T old = *at;
    if (__builtin_memcmp(&old, &expected, sizeof(T)) == 0) *at = value;
    return old;
}
