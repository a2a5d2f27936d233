// Operations of the hardware that CUDA C++ has no words for. They need no header, so no header has to be found.
#pragma once

#define SHARED_ROOM(Type) \
    extern __shared__ float4 room[]; \
    Type& shared = *reinterpret_cast<Type*>(room)

__device__ inline unsigned shared_address(const void* here) { return (unsigned)__cvta_generic_to_shared(here); }

// A cluster's barrier in two halves. After waiting, every thread sees what any thread wrote before it arrived.
__device__ inline void cluster_arrive() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ inline int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Writes to the address of `here` in the shared memory of block `rank` of the cluster.
__device__ inline void put(float* here, int rank, float value) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2; }" ::"r"(
            shared_address(here)),
        "r"(rank), "f"(value)
        : "memory");
}

// Asynchronous copies from global to shared memory. The thread that started them waits with wait_for_copies.
template <int BYTES>
__device__ inline void copy_async(float* into, const float* from) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(into)), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(into)), "l"(from) : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
