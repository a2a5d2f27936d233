// A cluster on a CPU: every thread of every block is a fibre, and one fibre at a time runs until it must wait for others.
//
// This is stricter than a GPU. Copies arrive at the last moment, and their target is NaN until then. One block runs as far
// ahead of the others as it can. With -fsanitize=thread only barriers order the accesses of different threads.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#define __device__
#define __constant__
#define __global__
#define __cluster_dims__(...)
#define __launch_bounds__(...)
#pragma GCC diagnostic ignored "-Wunknown-pragmas"

#ifdef __SANITIZE_THREAD__
extern "C" {
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void* __tsan_get_current_fiber();
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
constexpr unsigned WITHOUT_ORDER = 1;
#else
inline void* __tsan_create_fiber(unsigned) { return nullptr; }
inline void __tsan_destroy_fiber(void*) {}
inline void* __tsan_get_current_fiber() { return nullptr; }
inline void __tsan_switch_to_fiber(void*, unsigned) {}
inline void __tsan_acquire(void*) {}
inline void __tsan_release(void*) {}
constexpr unsigned WITHOUT_ORDER = 0;
#endif
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))

struct alignas(16) float4 {
    float x, y, z, w;
};

namespace emulated {

constexpr int STACK = 1 << 16;
inline long passed;  // barriers that all threads have reached

struct Barrier {
    int members = 0, arrived = 0, generation = 0;
    char order[4];  // one address per generation, so that waiting for one generation does not order the next

    UNSEEN int arrive() {
        const int mine = generation;
        __tsan_release(&order[mine % 4]);
        if (++arrived == members) arrived = 0, generation++, passed++;
        return mine;
    }
};

struct Warp {
    Barrier barrier;
    float slots[2][32];
};

struct Block {
    Barrier barrier;
    std::vector<Warp> warps;
    char* room;
};

struct Copy {
    float* into;
    const float* from;
    int floats;
};

struct Fibre {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    void* shadow;
    int block, thread, exchanges = 0, cluster_generation = 0;
    bool done = false;
    std::vector<Copy> copies;
};

inline std::vector<Block> blocks;
inline std::vector<Fibre> fibres;
inline Barrier cluster;
inline Fibre* current;
inline ucontext_t scheduler;
inline void* scheduler_shadow;
inline void (*program)();

UNSEEN inline void yield() {
    __tsan_switch_to_fiber(scheduler_shadow, WITHOUT_ORDER);
    swapcontext(&current->context, &scheduler);
}

UNSEEN inline void wait(Barrier& barrier, int generation, bool orders) {
    while (barrier.generation == generation) yield();
    if (orders) __tsan_acquire(&barrier.order[generation % 4]);
}

UNSEEN inline void begin() {
    program();
    __tsan_release(&program);
    current->done = true;
    yield();
}

// Runs `body` in all threads. Block `from` runs first.
UNSEEN inline void launch(int count, int threads, size_t bytes, int from, void (*body)()) {
    program = body;
    blocks = std::vector<Block>(count);
    fibres = std::vector<Fibre>(count * threads);
    cluster = Barrier{count * threads};
    scheduler_shadow = __tsan_get_current_fiber();
    for (Block& block : blocks) {
        block.barrier.members = threads;
        block.warps = std::vector<Warp>(threads / 32);
        for (Warp& warp : block.warps) warp.barrier.members = 32;
        block.room = static_cast<char*>(std::aligned_alloc(16, bytes));
    }
    for (size_t i = 0; i < fibres.size(); i++) {
        Fibre& fibre = fibres[i];
        fibre.block = i / threads, fibre.thread = i % threads;
        fibre.stack.reset(new char[STACK]);
        fibre.shadow = __tsan_create_fiber(0);
        getcontext(&fibre.context);
        fibre.context.uc_stack = {fibre.stack.get(), 0, STACK};
        makecontext(&fibre.context, begin, 0);
    }
    for (bool any = true; any;) {
        any = false;
        for (int turn = 0; turn < count; turn++)
            for (long before = -1; before != passed;) {  // until the block must wait for the others
                before = passed;
                for (int i = 0; i < threads; i++) {
                    current = &fibres[(from + turn) % count * threads + i];
                    if (current->done) continue;
                    any = true;
                    __tsan_switch_to_fiber(current->shadow, WITHOUT_ORDER);
                    swapcontext(&scheduler, &current->context);
                }
            }
    }
    __tsan_acquire(&program);
    for (Block& block : blocks) std::free(block.room);
    for (Fibre& fibre : fibres) __tsan_destroy_fiber(fibre.shadow);
}

struct Index {
    UNSEEN operator unsigned() const { return current->thread; }
};
struct ThreadIndex {
    Index x;
};

}  // namespace emulated

inline emulated::ThreadIndex threadIdx;

UNSEEN inline void __syncthreads() {
    emulated::Barrier& barrier = emulated::blocks[emulated::current->block].barrier;
    emulated::wait(barrier, barrier.arrive(), true);
}

UNSEEN inline void cluster_arrive() { emulated::current->cluster_generation = emulated::cluster.arrive(); }
UNSEEN inline void cluster_wait() { emulated::wait(emulated::cluster, emulated::current->cluster_generation, true); }
UNSEEN inline int cluster_rank() { return emulated::current->block; }

UNSEEN inline float __shfl_sync(unsigned, float value, int lane) {  // lanes meet, but this does not order their memory accesses
    emulated::Fibre* self = emulated::current;
    emulated::Warp& warp = emulated::blocks[self->block].warps[self->thread / 32];
    float* slots = warp.slots[self->exchanges++ % 2];
    slots[self->thread % 32] = value;
    const int mine = warp.barrier.generation;
    if (++warp.barrier.arrived == 32) warp.barrier.arrived = 0, warp.barrier.generation++, emulated::passed++;
    emulated::wait(warp.barrier, mine, false);
    return slots[lane];
}
UNSEEN inline float __shfl_xor_sync(unsigned all, float value, int mask) {
    return __shfl_sync(all, value, (emulated::current->thread % 32) ^ mask);
}

UNSEEN inline char* room_of(int block) { return emulated::blocks[block].room; }
#define SHARED_ROOM(Type) Type& shared = *reinterpret_cast<Type*>(room_of(cluster_rank()))

inline void put(float* here, int rank, float value) {
    *reinterpret_cast<float*>(room_of(rank) + (reinterpret_cast<char*>(here) - room_of(cluster_rank()))) = value;
}

UNSEEN inline std::vector<emulated::Copy>& copies() { return emulated::current->copies; }

template <int BYTES>
void copy_async(float* into, const float* from) {
    for (int i = 0; i < BYTES / 4; i++) into[i] = NAN;
    copies().push_back({into, from, BYTES / 4});
}
inline void wait_for_copies() {
    for (const emulated::Copy& copy : copies())
        for (int i = 0; i < copy.floats; i++) copy.into[i] = copy.from[i];
    copies().clear();
}
