// Copies beside a thread's work, and the barriers in shared memory that await them.
//
// A copy happens as late as allowed: when a thread waits for it. So a kernel that forgets to wait reads old bytes.
#pragma once
#include <stand_in/tensor_maps.h>
#include <stand_in/threads.h>

// Shared memory lies in the kernel's object, so half an address names it.
static inline size_t __cvta_generic_to_shared(const void *at) { return (size_t)at; }
static inline void *stand_in_shared(unsigned address) {
    size_t here = (size_t)&stand_in_at;
    return (void *)(here + (long)(int)(address - (unsigned)here));
}

// An mbarrier: 64 bits in shared memory. Its phase ends once all arrivals and bytes have come.
struct stand_in_mbarrier {
    stand_in_word phase : 2, expected : 20, pending : 20;
    long long bytes : 22;

    void init(unsigned arrivals) { phase = 0, expected = pending = arrivals, bytes = 0; }
    void arrive(unsigned arrivals) { pending -= arrivals, end_if_complete(); }
    void expect(unsigned more) { bytes += more; }
    void receive(unsigned arrived) { bytes -= arrived, end_if_complete(); }
    void end_if_complete() {
        if (pending == 0 && bytes == 0) phase ^= 1, pending = expected;
    }
};
static_assert(sizeof(stand_in_mbarrier) == 8, "an mbarrier has 64 bits");

struct stand_in_later {
    enum { COPY, ARRIVE, BULK, LOAD, IM2COL, STORE, GROUP } kind;
    bool done;
    unsigned thread;
    stand_in_mbarrier *barrier; // ARRIVE, BULK, LOAD, IM2COL
    void *to;
    const void *from;
    unsigned bytes, valid; // beyond `valid` follow zeros
    stand_in_map map;
    int at[5];
    unsigned short offsets[3];

    void run() {
        done = true;
        if (kind == COPY || kind == BULK) {
            __builtin_memcpy(to, from, valid);
            __builtin_memset((char *)to + valid, 0, bytes - valid);
        } else if (kind == LOAD || kind == STORE) {
            stand_in_tile(map, kind == LOAD ? to : (void *)from, at, kind == LOAD);
        } else if (kind == IM2COL) {
            stand_in_pixels(map, to, at, offsets);
        }
        if (kind == ARRIVE) barrier->arrive(1);
        else if (kind == BULK) barrier->receive(bytes);
        else if (kind == LOAD || kind == IM2COL) barrier->receive(stand_in_box_bytes(map));
    }
};

// What the running block has still to do, oldest first.
static struct {
    stand_in_later *list;
    unsigned count, room;
    stand_in_word serial;
} stand_in_queue;

static inline unsigned stand_in_thread() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
static inline stand_in_later &stand_in_defer(decltype(stand_in_later::kind) kind, stand_in_mbarrier *barrier) {
    auto &queue = stand_in_queue;
    if (queue.serial != stand_in_at.serial) queue.serial = stand_in_at.serial, queue.count = 0;
    if (queue.count == queue.room) {
        queue.room = queue.room ? 2 * queue.room : 64;
        queue.list = (stand_in_later *)__builtin_realloc(queue.list, queue.room * sizeof *queue.list);
    }
    auto &later = queue.list[queue.count++];
    later.kind = kind, later.done = false, later.thread = stand_in_thread(), later.barrier = barrier;
    return later;
}
static inline void stand_in_forget_done() {
    unsigned kept = 0;
    for (unsigned i = 0; i < stand_in_queue.count; i++)
        if (!stand_in_queue.list[i].done) {
            if (kept != i) stand_in_queue.list[kept] = stand_in_queue.list[i];
            kept++;
        }
    stand_in_queue.count = kept;
}
static inline void stand_in_run_copies(unsigned thread, unsigned before) {
    for (unsigned i = 0; i < before; i++) {
        auto &copy = stand_in_queue.list[i];
        if (copy.kind == stand_in_later::COPY && copy.thread == thread && !copy.done) copy.run();
    }
}
// Runs everything that the barrier awaits.
static inline void stand_in_settle(stand_in_mbarrier *barrier) {
    if (stand_in_queue.serial != stand_in_at.serial || stand_in_queue.count == 0) return;
    for (unsigned i = 0; i < stand_in_queue.count; i++) {
        auto &later = stand_in_queue.list[i];
        if (later.barrier != barrier || later.done) continue;
        if (later.kind == stand_in_later::ARRIVE) stand_in_run_copies(later.thread, i);
        later.run();
    }
    stand_in_forget_done();
}

struct stand_in_wait {
    stand_in_mbarrier *barrier;
    unsigned phase;
    bool is_over() const { return barrier->phase != phase; }
};
static bool stand_in_wait_is_over(void *of) {
    auto *wait = (stand_in_wait *)of;
    if (!wait->is_over()) stand_in_settle(wait->barrier);
    return wait->is_over();
}
static inline void stand_in_await(stand_in_mbarrier *barrier, unsigned phase) {
    stand_in_wait wait = {barrier, phase & 1};
    if (!stand_in_wait_is_over(&wait)) stand_in_driver->wait_until(stand_in_wait_is_over, &wait);
}

static inline void stand_in_copy(void *to, const void *from, unsigned bytes, unsigned valid) {
    auto &copy = stand_in_defer(stand_in_later::COPY, nullptr);
    copy.to = to, copy.from = from, copy.bytes = bytes, copy.valid = valid < bytes ? valid : bytes;
    stand_in_driver->executed(STAND_IN_CP_ASYNC);
}
// The barrier's phase does not end before the thread's copies so far.
static inline void stand_in_arrive_after_copies(stand_in_mbarrier *barrier) {
    barrier->pending += 1;
    stand_in_defer(stand_in_later::ARRIVE, barrier);
}
static inline void stand_in_bulk(void *to, const void *from, unsigned bytes, stand_in_mbarrier *barrier) {
    auto &copy = stand_in_defer(stand_in_later::BULK, barrier);
    copy.to = to, copy.from = from, copy.bytes = copy.valid = bytes;
    stand_in_driver->executed(STAND_IN_BULK);
}
static inline stand_in_later &stand_in_tensor(decltype(stand_in_later::kind) kind, const void *map, const int *at,
                                              unsigned rank, stand_in_mbarrier *barrier) {
    auto &copy = stand_in_defer(kind, barrier);
    __builtin_memcpy(&copy.map, map, sizeof copy.map);
    for (unsigned i = 0; i < 5; i++) copy.at[i] = i < rank ? at[i] : 0;
    if (copy.map.magic != STAND_IN_MAP || copy.map.rank != rank || copy.map.im2col != (kind == stand_in_later::IM2COL))
        __builtin_trap();
    return copy;
}

// Groups of stores: a thread waits until at most `pending` of its groups have still to run.
static inline void stand_in_wait_groups(unsigned pending) {
    unsigned thread = stand_in_thread(), groups = 0;
    if (stand_in_queue.serial != stand_in_at.serial) return;
    auto mine = [&](unsigned i, decltype(stand_in_later::kind) kind) {
        auto &later = stand_in_queue.list[i];
        return later.kind == kind && later.thread == thread && !later.done;
    };
    for (unsigned i = 0; i < stand_in_queue.count; i++) groups += mine(i, stand_in_later::GROUP);
    for (unsigned i = 0; i < stand_in_queue.count && groups > pending; i++) {
        if (mine(i, stand_in_later::STORE)) stand_in_queue.list[i].run();
        else if (mine(i, stand_in_later::GROUP)) stand_in_queue.list[i].run(), groups--;
    }
    stand_in_forget_done();
}
