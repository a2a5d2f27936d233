// What the kernel asks of the machine beyond CUDA's own words: no header is needed, so none has to be found.
#pragma once

#define SHARED_ROOM(Type) \
    extern __shared__ float4 room[]; \
    Type& shared = *reinterpret_cast<Type*>(room)

__device__ inline unsigned shared_address(const void* here) { return (unsigned)__cvta_generic_to_shared(here); }

// A cluster's barrier in two halves: what a thread wrote before it arrives, all threads of all blocks see after they wait.
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

// Writes to where `here` lies in the shared memory of the cluster's block `rank`.
__device__ inline void put(float* here, int rank, float value) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2; }" ::"r"(
            shared_address(here)),
        "r"(rank), "f"(value)
        : "memory");
}

// Copies that go on by themselves, from global into shared memory, until the thread that asked for them waits.
template <int BYTES>
__device__ inline void copy_async(float* into, const float* from) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(into)), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(into)), "l"(from) : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
