// What the kernels of a step of few rows share: two narrow dtypes, products of 16 x 16 by 16 x 8, and dependent launch.
//
// Dependent launch (sm_90 and later): a kernel begins while the one before it still runs. What no kernel of the step writes
// (weights, keys and values of earlier steps) it loads first; `signal` lets the next kernel begin; behind `wait`, everything
// that the kernels before wrote is there. Activations are read past the first cache, which may hold what was there before.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ inline void signal_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// 16 bytes of a weight: read once, kept in no register-near cache. Volatile: it stays before `signal_next`.
__device__ inline uint4 load_weights(const void* at) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(at));
    return x;
}

__device__ inline uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// Copies 16 bytes into shared memory in the background; zeros if not `there`.
__device__ inline void copy_async(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ inline void copies_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

template <typename T> struct Narrow;

template <> struct Narrow<__nv_bfloat16> {
    static __device__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }
    static __device__ __nv_bfloat16 narrow(float x) { return __float2bfloat16_rn(x); }
    static __device__ float2 wide2(uint32_t x) { return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)}; }
    static __device__ uint32_t narrow2(float x, float y) {
        __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<uint32_t*>(&both);
    }
    // sums [16, 8] += a [16, 16] b [16, 8], where rows 8 to 15 of a are zero.
    static __device__ void multiply(float (&sums)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1));
    }
};

template <> struct Narrow<__half> {
    static __device__ float wide(__half x) { return __half2float(x); }
    static __device__ __half narrow(float x) { return __float2half_rn(x); }
    static __device__ float2 wide2(uint32_t x) { return __half22float2(*reinterpret_cast<__half2*>(&x)); }
    static __device__ uint32_t narrow2(float x, float y) {
        __half2 both = __floats2half2_rn(x, y);
        return *reinterpret_cast<uint32_t*>(&both);
    }
    static __device__ void multiply(float (&sums)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1));
    }
};

// Eight features, widened.
template <typename T> __device__ inline void widen(float (&y)[8], uint4 x) {
    const uint32_t parts[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = Narrow<T>::wide2(parts[i]);
        y[2 * i] = two.x;
        y[2 * i + 1] = two.y;
    }
}

template <typename T> __device__ inline uint4 narrowed(const float (&y)[8]) {
    return {Narrow<T>::narrow2(y[0], y[1]), Narrow<T>::narrow2(y[2], y[3]),
            Narrow<T>::narrow2(y[4], y[5]), Narrow<T>::narrow2(y[6], y[7])};
}

__device__ inline float sum_of_warp(float x) {
#pragma unroll
    for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(0xffffffffu, x, other);
    return x;
}
