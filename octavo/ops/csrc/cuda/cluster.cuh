// What only sm_90 and later have: clusters of blocks, barriers in shared memory, and copies in bulk.
#pragma once

#include "common.cuh"

__device__ inline uint32_t cluster_rank() {
    uint32_t x;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
    return x;
}
__device__ inline uint32_t cluster_size() {
    uint32_t x;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
    return x;
}
// Between an arrival and a wait, blocks go on; behind the wait, what all of them wrote before they arrived is there.
__device__ inline void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Writes into the shared memory of a block of the cluster.
__device__ inline void write_to(float* at, uint32_t rank, float x) {
    asm volatile("{.reg .u32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.f32 [there], %2;}"
                 :: "r"(shared_address(at)), "r"(rank), "f"(x) : "memory");
}

// Barriers in shared memory, by their addresses: so many arrivals make a phase, and the bytes that were said to come.
__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
// What was initialized is seen by copies, and by other blocks of the cluster.
__device__ inline void barriers_visible() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
__device__ inline void barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
// Waits until the phase of this parity is over.
__device__ inline void barrier_wait(uint32_t barrier, int parity) {
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra.uni over;\nbra.uni again;\nover:\n}"
                 :: "r"(barrier), "r"(parity) : "memory");
}
// Copies bytes (a multiple of 16) into shared memory in the background; a barrier expects them.
__device__ inline void copy_bulk(void* to, const void* from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
