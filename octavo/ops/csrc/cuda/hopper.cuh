// What Hopper (sm_90a) has beside: copies of boxes of a tensor, products of whole warpgroups.
//
// Boxes are 64 features (128 bytes) wide and lie row below row, their 16-byte pieces permuted in every 8 rows (the 128-byte
// swizzle), which is what the descriptors of products say, too. A tile of more features is several such columns of boxes.
#pragma once

#include "cluster.cuh"

// As the driver writes it (cuTensorMapEncodeTiled).
struct alignas(64) TensorMap { uint64_t opaque[16]; };

// `barriers_visible` for copies that read descriptions in global memory, too.
__device__ inline void barriers_visible_to_boxes() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
}

// Some of the block's warps meet, by the name of a barrier.
__device__ inline void named_meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(name), "r"(threads) : "memory");
}

__device__ inline void copy_box(uint32_t to, const TensorMap& map, uint32_t barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ inline void copy_box(uint32_t to, const TensorMap& map, uint32_t barrier, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :: "r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ inline void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}
// What was written to shared memory by stores is seen by products and copies.
__device__ inline void stores_visible() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int REGISTERS> __device__ inline void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}
template <int REGISTERS> __device__ inline void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}

// Describes a tile in shared memory. columns: bytes from one column of 64 features to the next; read only where features are
// what is multiplied with registers' rows (the second product).
__device__ inline uint64_t tile_at(uint32_t address, int columns) {
    const uint64_t swizzle = 1, eight_rows = 1024 >> 4;
    return swizzle << 62 | eight_rows << 32 | static_cast<uint64_t>(columns >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Products run in the background: `products_begin` before the first, `products_commit` behind the last of a group.
__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ inline void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

#define EIGHT(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), "+f"(x[i + 7])
#define THIRTY_TWO(x, i) EIGHT(x, i), EIGHT(x, i + 8), EIGHT(x, i + 16), EIGHT(x, i + 24)
#define NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, " \
    "%26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
    "%56, %57, %58, %59, %60, %61, %62, %63"

// Products of 64 rows. scores (+)= a b^T with both in shared memory, features next to one another in both; sums += weights b
// with weights [64, 16] in registers, and b's 16 rows below one another.
template <typename T, int COLUMNS> struct Product;

#define PRODUCT(TYPE, NAME, COLUMNS, NAMES, OUTS, P0, P1, P2, P3, P4, P5)                                                     \
    template <> struct Product<TYPE, COLUMNS> {                                                                               \
        static __device__ inline void scores(float* x, uint64_t a, uint64_t b, int add) {                      \
            asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " P2 ", 0;\n"                                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {" NAMES "}, " P0 ", " P1    \
                         ", add, 1, 1, 0, 0;\n}"                                                                              \
                         : OUTS : "l"(a), "l"(b), "r"(add));                                                                  \
        }                                                                                                                     \
        static __device__ inline void sums(float* x, const uint32_t* w, uint64_t b) {                                         \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." NAME "." NAME " {" NAMES "}, {" P0 ", " P1   \
                         ", " P2 ", " P3 "}, " P4 ", 1, 1, 1, 1;"                                                             \
                         : OUTS : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(b));                                        \
        }                                                                                                                     \
    }
#define PRODUCTS(TYPE, NAME)                                                                                                  \
    PRODUCT(TYPE, NAME, 64, NAMES_32, THIRTY_TWO(x, 0), "%32", "%33", "%34", "%35", "%36", "%37");                            \
    PRODUCT(TYPE, NAME, 128, NAMES_64, THIRTY_TWO(x, 0) COMMA THIRTY_TWO(x, 32), "%64", "%65", "%66", "%67", "%68", "%69")
#define COMMA ,
PRODUCTS(__nv_bfloat16, "bf16");
PRODUCTS(__half, "f16");
