// Products of up to 8 rows with a weight [N, K], with what lies before and after them in a layer.
//
// A block takes a range of outputs, eight at a time (a tile), and of K a slice; the blocks of a cluster have the slices of the
// same outputs. Its 8 warps share the slice, and each keeps its features of all rows in registers. Weights come ahead into a ring
// in shared memory: a stage has C-th parts of the slice, of 8 outputs, and is 8 bulk copies of up to 4 KiB (of 256 bytes, they took
// half as long again). A lane takes 16 bytes of a stage at once: 8 features of one output, which are just what the matrix unit
// wants of that lane if features are counted in another order, the same for activations. The sums of warps, then of a cluster,
// are added up in shared memory.
//
// The next kernel is let in when a block has asked for its last weights: its first ones come while this one's sums are added up.
// Behind a long product that is added it waits for the end: measured, 2 % of a step of large layers.
#include "cluster.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, MOST_STAGES = 12;

enum Output { STORE, GATE, ADD };
enum Activation { SILU, GELU, GELU_TANH, RELU };

// x: T [rows, K]. norm: [K], of x, if not null. weight: [N, K], of GATE [2 N, K]. out: [rows, N], overwritten, or added to by ADD.
// slice: features of a block. stages: of the ring.
struct Product {
    const void* x;
    const void* norm;
    const void* weight;
    const void* bias;
    void* out;
    float eps;
    int rows, K, N, activation, slice, stages;
};

__device__ inline float activated(float x, int activation) {
    switch (activation) {
        case SILU: return x / (1.0f + __expf(-x));
        case GELU: return x * 0.5f * (1.0f + erff(x * 0.7071067811865476f));
        case GELU_TANH: return x * 0.5f * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
        default: return x < 0.0f ? 0.0f : x;
    }
}

template <typename T, bool NORM, int OUTPUT, int Q, int C> __device__ void multiply(const Product& p) {
    constexpr int HALVES = OUTPUT == GATE ? 2 : 1;
    // Bytes of a row of a stage; those behind it keep neighbouring rows in different banks.
    constexpr int SPAN = WARPS * Q * 32, ROW = SPAN * 2 + 64, STAGE = 8 * ROW;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float2 sums_of_warps[2][WARPS][32];
    __shared__ float squares[WARPS][8];
    __shared__ uint64_t arrived[MOST_STAGES];
    __shared__ unsigned taken[MOST_STAGES];

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = lane / 4, quad = lane % 4;
    const int rank = cluster_rank(), slices = cluster_size(), group = blockIdx.x / slices, num_groups = gridDim.x / slices;
    const int begin = rank * p.slice, end = min(begin + p.slice, p.K);
    const int all_tiles = p.N / 8;
    const int first = int(int64_t(group) * all_tiles / num_groups), last = int(int64_t(group + 1) * all_tiles / num_groups);
    const int num_tiles = (last - first) * HALVES, num_loads = num_tiles * C;
    // Sums of the tiles that this block finishes, of each slice: every so manieth tile is one block's of the cluster.
    const int most_own = (last - first + slices - 1) / slices;
    float* found = reinterpret_cast<float*>(memory + p.stages * STAGE);
    T* scales = reinterpret_cast<T*>(found + slices * most_own * HALVES * 64);
    // Where a lane's features of a piece begin.
    auto place = [&](int i) { return begin + i / Q * SPAN + warp * Q * 32 + i % Q * 32 + quad * 8; };
    auto load = [&](int load, int slot) {
        const int tile = load / C, k = begin + load % C * SPAN, bytes = max(min(SPAN, end - k), 0) * 2;
        const int output = (first + tile / HALVES) * 8 + lane;
        if (lane == 0) barrier_expect(shared_address(&arrived[slot]), bytes * 8);
        __syncwarp();
        if (lane < 8 && bytes > 0) {
            const T* from = static_cast<const T*>(p.weight) + size_t(output + tile % HALVES * p.N) * p.K + k;
            copy_bulk(memory + slot * STAGE + lane * ROW, from, bytes, shared_address(&arrived[slot]));
        }
    };

    // Others write into `found` when all have begun.
    if (slices > 1) cluster_arrive();
    // What is never copied is multiplied by zero, and must be a number.
    if (end - begin < C * SPAN) {
        for (int i = threadIdx.x; i < p.stages * STAGE / 16; i += THREADS)
            reinterpret_cast<uint4*>(memory)[i] = make_uint4(0, 0, 0, 0);
        __syncthreads();
    }
    if (threadIdx.x < p.stages) {
        barrier_init(shared_address(&arrived[threadIdx.x]), 1);
        taken[threadIdx.x] = 0;
    }
    barriers_visible();
    if (warp == 0) {
        __syncwarp();
        for (int i = 0; i < min(p.stages, num_loads); ++i) load(i, i);
        if (num_loads <= p.stages) signal_next();
    }
    if constexpr (NORM) {
        for (int k = threadIdx.x * 8; begin + k < end; k += THREADS * 8)
            copy_async(scales + k, static_cast<const T*>(p.norm) + begin + k, true);
        copies_commit();
    }
    __syncthreads();
    wait_for_previous();

    const T* x = static_cast<const T*>(p.x) + size_t(member) * p.K;
    const bool has_row = member < p.rows;
    auto load_x = [&](int k, int end) {
        return has_row && k < end ? __ldcg(reinterpret_cast<const uint4*>(x + k)) : make_uint4(0, 0, 0, 0);
    };
    uint4 xf[C * Q];
#pragma unroll
    for (int i = 0; i < C * Q; ++i) xf[i] = load_x(place(i), end);

    // What a thread adds to: loaded now, so that it is there in the end.
    const int rows8 = 8 * p.rows, num_outs = (last - first + slices - 1 - rank) / slices * rows8;
    auto output_of = [&](int at) { return (first + at / rows8 * slices + rank) * 8 + at % 8; };
    auto place_of = [&](int at) { return static_cast<T*>(p.out) + size_t(at % rows8 / 8) * p.N + output_of(at); };
    auto old = [&](int at) { return __ldcg(reinterpret_cast<const unsigned short*>(place_of(at))); };
    unsigned short before = OUTPUT == ADD && threadIdx.x < num_outs ? old(threadIdx.x) : 0;

    if constexpr (NORM) {
        float sum = 0.0f;
        auto add_squares = [&](uint4 x) {
            float y[8];
            widen<T>(y, x);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += y[i] * y[i];
        };
#pragma unroll
        for (int i = 0; i < C * Q; ++i) add_squares(xf[i]);
        for (int other = 0; other < slices; ++other) {
            if (other == rank) continue;
            const int moved = (other - rank) * p.slice, to = min((other + 1) * p.slice, p.K);
            for (int i = 0; i < C * Q; ++i) add_squares(load_x(place(i) + moved, to));
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (quad == 0) squares[warp][member] = sum;
        copies_wait<0>();
        __syncthreads();
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) total += squares[i][member];
        const float scale = rsqrtf(total / p.K + p.eps);
#pragma unroll
        for (int i = 0; i < C * Q; ++i) {
            const int k = place(i);
            float y[8], w[8];
            // Else the compiler would keep all of them widened since they were squared.
            asm volatile("" : "+r"(xf[i].x), "+r"(xf[i].y), "+r"(xf[i].z), "+r"(xf[i].w));
            widen<T>(y, xf[i]);
            widen<T>(w, *reinterpret_cast<const uint4*>(scales + (k < end ? k - begin : 0)));
#pragma unroll
            for (int j = 0; j < 8; ++j) y[j] *= scale * w[j];
            xf[i] = narrowed<T>(y);
        }
    }

    int slot = 0, phase = 0, next = p.stages;
    for (int tile = 0; tile < num_tiles; ++tile) {
        float sums[4] = {};
#pragma unroll
        for (int chunk = 0; chunk < C; ++chunk) {
            barrier_wait(shared_address(&arrived[slot]), phase);
            const unsigned char* stage = memory + slot * STAGE + member * ROW + warp * Q * 64 + quad * 16;
#pragma unroll
            for (int i = 0; i < Q; ++i) {
                const uint4 w = *reinterpret_cast<const uint4*>(stage + i * 64), x = xf[chunk * Q + i];
                Narrow<T>::multiply(sums, w.x, w.y, x.x, x.y);
                Narrow<T>::multiply(sums, w.z, w.w, x.z, x.w);
            }
            __syncwarp();
            if (next < num_loads) {
                // The last warp that has taken its part lets the next weights in.
                unsigned before = 0;
                if (lane == 0) {
                    __threadfence_block();
                    before = atomicAdd(&taken[slot], 1);
                }
                if (__shfl_sync(0xffffffffu, before, 0) % WARPS == WARPS - 1) {
                    load(next, slot);
                    if (OUTPUT != ADD && next + 1 == num_loads) signal_next();
                }
            }
            ++next;
            if (++slot == p.stages) slot = 0, phase ^= 1;
        }
        sums_of_warps[tile % 2][warp][lane] = {sums[0], sums[1]};
        // Who is late here reads on undisturbed: the next tile's sums go elsewhere.
        __syncthreads();
        if (threadIdx.x < 64) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < WARPS; ++i) sum += reinterpret_cast<const float*>(sums_of_warps[tile % 2][i])[threadIdx.x];
            const int own = tile / HALVES / slices, owner = tile / HALVES % slices;
            float* to = found + ((rank * most_own + own) * HALVES + tile % HALVES) * 64 + threadIdx.x;
            if (slices == 1) *to = sum;
            else {
                if (tile == 0) cluster_wait();
                write_to(to, owner, sum);
            }
        }
    }
    if (slices > 1) {
        if (threadIdx.x >= 64 || num_tiles == 0) cluster_wait();
        cluster_arrive();
        cluster_wait();
    } else {
        __syncthreads();
    }

    for (int at = threadIdx.x; at < num_outs; at += THREADS) {
        const int output = output_of(at);
        auto total = [&](int half) {
            float sum = p.bias ? Narrow<T>::wide(static_cast<const T*>(p.bias)[output + half * p.N]) : 0.0f;
            for (int i = 0; i < slices; ++i)
                sum += found[((i * most_own + at / rows8) * HALVES + half) * 64 + at % 8 * 8 + at % rows8 / 8];
            return Narrow<T>::wide(Narrow<T>::narrow(sum));
        };
        T* to = place_of(at);
        if constexpr (OUTPUT == GATE) *to = Narrow<T>::narrow(activated(total(0), p.activation) * total(1));
        if constexpr (OUTPUT == STORE) *to = Narrow<T>::narrow(total(0));
        if constexpr (OUTPUT == ADD) {
            if (at >= THREADS) before = old(at);
            *to = Narrow<T>::narrow(Narrow<T>::wide(*reinterpret_cast<const T*>(&before)) + total(0));
        }
    }
}

#define KERNEL(name, T, NORM, OUTPUT, Q, C)                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) name(const __grid_constant__ Product p) {   \
        multiply<T, NORM, OUTPUT, Q, C>(p);                                                               \
    }
#define KERNELS(suffix, T, Q, C)                                  \
    KERNEL(norm_product_##Q##_##C##_##suffix, T, true, STORE, Q, C)  \
    KERNEL(norm_gate_##Q##_##C##_##suffix, T, true, GATE, Q, C)      \
    KERNEL(product_add_##Q##_##C##_##suffix, T, false, ADD, Q, C)

#define SIZES(suffix, T)     \
    KERNELS(suffix, T, 2, 1) \
    KERNELS(suffix, T, 4, 1) \
    KERNELS(suffix, T, 6, 1) \
    KERNELS(suffix, T, 8, 1) \
    KERNELS(suffix, T, 5, 2) \
    KERNELS(suffix, T, 6, 2) \
    KERNELS(suffix, T, 7, 2) \
    KERNELS(suffix, T, 8, 2)

SIZES(bf16, __nv_bfloat16)
SIZES(f16, __half)
