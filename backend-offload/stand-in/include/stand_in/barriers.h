// cuda::barrier, asynchronous copies of CUDA C++, and cooperative groups of one block, thread or cluster.
#pragma once
#include <stand_in/asynchronous.h>

namespace std {
template <class T> struct stand_in_unreferenced { typedef T is; };
template <class T> struct stand_in_unreferenced<T &> { typedef T is; };
template <class T> constexpr typename stand_in_unreferenced<T>::is &&move(T &&x) noexcept {
    return static_cast<typename stand_in_unreferenced<T>::is &&>(x);
}
}

namespace cooperative_groups {
struct thread_block {
    static unsigned thread_rank() { return stand_in_thread(); }
    static void sync() { __syncthreads(); }
};
struct stand_in_one_thread {
    static unsigned thread_rank() { return 0; }
    static void sync() {}
};
static inline thread_block this_thread_block() { return {}; }
static inline stand_in_one_thread this_thread() { return {}; }

template <class Group> static inline void memcpy_async(const Group &, void *to, const void *from, size_t bytes) {
    if (Group::thread_rank() == 0) stand_in_copy(to, from, bytes, bytes);
}
template <class Group> static inline void wait(const Group &) {
    stand_in_run_copies(stand_in_thread(), stand_in_queue.serial == stand_in_at.serial ? stand_in_queue.count : 0);
    stand_in_forget_done();
    Group::sync();
}

// Of one block: src/kernels/translate.rs refuses others.
struct cluster_group {
    static unsigned block_rank() { return 0; }
    static dim3 block_index() { return {0, 0, 0}; }
    static void sync() { __syncthreads(); }
};
static inline cluster_group this_cluster() { return {}; }
}

namespace cuda {
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };

template <thread_scope S> struct barrier {
    typedef stand_in_word arrival_token;
    stand_in_mbarrier state;

    arrival_token arrive(unsigned arrivals = 1) {
        arrival_token phase = state.phase;
        state.arrive(arrivals);
        return phase;
    }
    void wait(arrival_token &&phase) { stand_in_await(&state, phase); }
    void wait_parity(unsigned phase) { stand_in_await(&state, phase); }
    void arrive_and_wait() { wait(arrive()); }
};
template <thread_scope S> static inline void init(barrier<S> *barrier, unsigned arrivals) {
    barrier->state.init(arrivals);
}

template <thread_scope S>
static inline void memcpy_async(void *to, const void *from, size_t bytes, barrier<S> &barrier) {
    stand_in_copy(to, from, bytes, bytes);
    stand_in_arrive_after_copies(&barrier.state);
}
template <class Group, thread_scope S>
static inline void memcpy_async(const Group &, void *to, const void *from, size_t bytes, barrier<S> &barrier) {
    if (Group::thread_rank() == 0) memcpy_async(to, from, bytes, barrier);
}

namespace device {
template <thread_scope S> static inline stand_in_word *barrier_native_handle(barrier<S> &barrier) {
    return (stand_in_word *)&barrier.state;
}
template <thread_scope S> static inline void barrier_expect_tx(barrier<S> &barrier, unsigned bytes) {
    barrier.state.expect(bytes);
}
template <thread_scope S>
static inline stand_in_word barrier_arrive_tx(barrier<S> &barrier, unsigned arrivals, unsigned bytes) {
    barrier.state.expect(bytes);
    return barrier.arrive(arrivals);
}
template <thread_scope S>
static inline void memcpy_async_tx(void *to, const void *from, size_t bytes, barrier<S> &barrier) {
    stand_in_bulk(to, from, bytes, &barrier.state);
}

namespace experimental {
#define STAND_IN_TENSOR(rank, parameters, coordinates)                                              \
    template <class M, thread_scope S>                                                              \
    static inline void cp_async_bulk_tensor_##rank##d_global_to_shared(void *to, const M *map, parameters, \
                                                                       barrier<S> &barrier) {       \
        int at[] = {coordinates};                                                                   \
        stand_in_tensor(stand_in_later::LOAD, map, at, rank, &barrier.state).to = to;               \
        stand_in_driver->executed(STAND_IN_TENSOR_LOAD);                                            \
    }                                                                                               \
    template <class M>                                                                              \
    static inline void cp_async_bulk_tensor_##rank##d_shared_to_global(const M *map, parameters, const void *from) { \
        int at[] = {coordinates};                                                                   \
        stand_in_tensor(stand_in_later::STORE, map, at, rank, nullptr).from = from;                 \
        stand_in_driver->executed(STAND_IN_TENSOR_STORE);                                           \
    }
#define STAND_IN_LIST(...) __VA_ARGS__
STAND_IN_TENSOR(1, int a, a)
STAND_IN_TENSOR(2, STAND_IN_LIST(int a, int b), STAND_IN_LIST(a, b))
STAND_IN_TENSOR(3, STAND_IN_LIST(int a, int b, int c), STAND_IN_LIST(a, b, c))
STAND_IN_TENSOR(4, STAND_IN_LIST(int a, int b, int c, int d), STAND_IN_LIST(a, b, c, d))
STAND_IN_TENSOR(5, STAND_IN_LIST(int a, int b, int c, int d, int e), STAND_IN_LIST(a, b, c, d, e))
#undef STAND_IN_LIST
#undef STAND_IN_TENSOR
static inline void fence_proxy_async_shared_cta() {}
static inline void cp_async_bulk_commit_group() { stand_in_defer(stand_in_later::GROUP, nullptr); }
template <int Pending> static inline void cp_async_bulk_wait_group() { stand_in_wait_groups(Pending); }
template <int Pending> static inline void cp_async_bulk_wait_group_read() { stand_in_wait_groups(Pending); }
}
}
}
