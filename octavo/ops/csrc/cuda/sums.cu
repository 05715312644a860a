// Sums over ranks through memory of each that all can write, for messages so small that starting counts for more than moving.
//
// A rank writes its part to all others, then adds up what it finds in its own memory, in the order of ranks: all get the same
// bits. Calls take turns with two halves of the memory: a rank that writes the half of the call before last has read something
// of the last call from every other, so those have done with the call before it.
//
// Of small messages every 8 bytes on the wire are 4 of data and the number of the call, written at once: who finds the number
// has the data, and nobody waits for a flag behind it. Larger ones would take too long to move so: a block moves what it owns as
// it is, and the number of the call behind it.
//
// A piece of a message always belongs to the same block, and each block counts its calls by itself, in memory: a graph that
// replays the kernel goes on counting.
#include "common.cuh"

constexpr int MOST_RANKS = 8;
// Pieces of a large message that a thread moves.
constexpr int EACH = 4;

// x: the message, `pieces` of 16 bytes. out: takes the sum; if it is not x, x is zero afterwards. memories: of every rank,
// [2 halves, ranks, most_pieces] of 32 bytes each, or of 16 if it is for large ones. numbers: of every rank, [ranks, most_blocks],
// the last call that a rank's block has written. calls: of every block of this rank.
struct Sum {
    void* x;
    void* out;
    uint4* memories[MOST_RANKS];
    uint32_t* numbers[MOST_RANKS];
    uint32_t* calls;
    int rank, ranks, pieces, most_pieces, most_blocks;
};

__device__ inline void write(uint4* to, uint32_t x, uint32_t y, uint32_t call) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %3, %2, %3};" :: "l"(to), "r"(x), "r"(y), "r"(call) : "memory");
}

__device__ inline uint2 read(const uint4* from, uint32_t call) {
    uint32_t x, y, first, second;
    do {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x), "=r"(first), "=r"(y), "=r"(second) : "l"(from) : "memory");
    } while (first != call || second != call);
    return {x, y};
}

template <typename T> struct Piece {
    float sums[8] = {};
    __device__ void add(uint4 x) {
        float y[8];
        widen<T>(y, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i] += y[i];
    }
    __device__ uint4 total() const { return narrowed<T>(sums); }
};
template <> struct Piece<float> {
    float sums[4] = {};
    __device__ void add(uint4 x) {
        sums[0] += __uint_as_float(x.x);
        sums[1] += __uint_as_float(x.y);
        sums[2] += __uint_as_float(x.z);
        sums[3] += __uint_as_float(x.w);
    }
    __device__ uint4 total() const {
        return {__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]), __float_as_uint(sums[3])};
    }
};

// Whole numbers: who has nothing to say brings zeros, and all get the bits of who has.
template <> struct Piece<int> {
    uint4 sums = {};
    __device__ void add(uint4 x) { sums = {sums.x + x.x, sums.y + x.y, sums.z + x.z, sums.w + x.w}; }
    __device__ uint4 total() const { return sums; }
};

template <typename T> __device__ void sum(const Sum& p) {
    signal_next();
    wait_for_previous();
    const int piece = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t call = p.calls[blockIdx.x] + 1;
    if (piece < p.pieces) {
        uint4* x = static_cast<uint4*>(p.x) + piece;
        const uint4 own = __ldcg(x);
        const size_t half = size_t(call % 2) * p.ranks * p.most_pieces + piece;
        for (int rank = 0; rank < p.ranks; ++rank) {
            if (rank == p.rank) continue;
            uint4* to = p.memories[rank] + (half + size_t(p.rank) * p.most_pieces) * 2;
            write(to, own.x, own.y, call);
            write(to + 1, own.z, own.w, call);
        }
        Piece<T> found;
        for (int rank = 0; rank < p.ranks; ++rank) {
            if (rank == p.rank) {
                found.add(own);
                continue;
            }
            const uint4* from = p.memories[p.rank] + (half + size_t(rank) * p.most_pieces) * 2;
            const uint2 low = read(from, call), high = read(from + 1, call);
            found.add({low.x, low.y, high.x, high.y});
        }
        if (p.out != p.x) *x = {0, 0, 0, 0};
        static_cast<uint4*>(p.out)[piece] = found.total();
    }
    __syncthreads();
    if (threadIdx.x == 0) p.calls[blockIdx.x] = call;
}

template <typename T> __device__ void sum_large(const Sum& p) {
    signal_next();
    wait_for_previous();
    const uint32_t call = p.calls[blockIdx.x] + 1;
    const int first = blockIdx.x * blockDim.x * EACH + threadIdx.x;
    const size_t half = size_t(call % 2) * p.ranks * p.most_pieces;
    uint4* x = static_cast<uint4*>(p.x);
    uint4 own[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int piece = first + i * blockDim.x;
        own[i] = piece < p.pieces ? __ldcg(x + piece) : make_uint4(0, 0, 0, 0);
    }
    for (int rank = 0; rank < p.ranks; ++rank) {
        if (rank == p.rank) continue;
        uint4* to = p.memories[rank] + half + size_t(p.rank) * p.most_pieces;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int piece = first + i * blockDim.x;
            if (piece < p.pieces) __stcg(to + piece, own[i]);
        }
    }
    __syncthreads();
    if (threadIdx.x < p.ranks && threadIdx.x != p.rank) {
        __threadfence_system();
        uint32_t* to = p.numbers[threadIdx.x] + p.rank * p.most_blocks + blockIdx.x;
        asm volatile("st.release.sys.global.u32 [%0], %1;" :: "l"(to), "r"(call) : "memory");
        const uint32_t* from = p.numbers[p.rank] + threadIdx.x * p.most_blocks + blockIdx.x;
        uint32_t found;
        // It may be one further already.
        do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(from) : "memory");
        while (static_cast<int>(found - call) < 0);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int piece = first + i * blockDim.x;
        if (piece >= p.pieces) break;
        Piece<T> found;
        for (int rank = 0; rank < p.ranks; ++rank)
            found.add(rank == p.rank ? own[i] : __ldcg(p.memories[p.rank] + half + size_t(rank) * p.most_pieces + piece));
        if (p.out != p.x) x[piece] = {0, 0, 0, 0};
        static_cast<uint4*>(p.out)[piece] = found.total();
    }
    if (threadIdx.x == 0) p.calls[blockIdx.x] = call;
}

#define KERNEL(suffix, T)                                                                            \
    extern "C" __global__ void sum_##suffix(const __grid_constant__ Sum p) { sum<T>(p); }            \
    extern "C" __global__ void sum_large_##suffix(const __grid_constant__ Sum p) { sum_large<T>(p); }

KERNEL(bf16, __nv_bfloat16)
KERNEL(f16, __half)
KERNEL(f32, float)
KERNEL(i32, int)
