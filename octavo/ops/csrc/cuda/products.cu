// Products of up to 8 rows with a weight [N, K], with what lies before and after them in a layer.
//
// A tile is NT times 8 outputs; a block takes tile after tile. Its 8 warps share K: in every chunk of K, a warp has I pieces of
// 32 features of each output, and a lane 8 features of one output of each piece: 16 bytes, which are just what the matrix unit
// wants of that lane if features are counted in another order, the same for activations. So weights go from memory to
// registers to the product. When a piece has been multiplied, its registers take the same piece of the next chunk or tile: NT * I
// loads of a lane are always on their way. The sums of the 8 warps are added up in shared memory.
#include "common.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;
// Between rows in shared memory, so that eight rows by four lanes read from different banks.
constexpr int PAD = 32;

enum Input { PLAIN, NORM, PARTS };
enum Output { STORE, GATE, ADD };
enum Activation { SILU, GELU, GELU_TANH, RELU };

// x: T [rows, K]; of PARTS float [rows, K / D, parts, D], and lses [rows, K / D, parts] to base 2. norm: [K]. weight: [N, K], of
// GATE [2 N, K]. out: [rows, N], overwritten, or added to by ADD.
struct Product {
    const void* x;
    const float* lses;
    const void* norm;
    const void* weight;
    const void* bias;
    void* out;
    float eps;
    int rows, K, N, head, parts, activation;
};

__device__ inline float activated(float x, int activation) {
    switch (activation) {
        case SILU: return x / (1.0f + __expf(-x));
        case GELU: return x * 0.5f * (1.0f + erff(x * 0.7071067811865476f));
        case GELU_TANH: return x * 0.5f * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
        default: return x < 0.0f ? 0.0f : x;
    }
}

// Puts the rows of the residual stream, normalized, into shared memory. The norm's weight is on its way to `scales`.
template <typename T> __device__ void take_normalized(const Product& p, T* xs, const T* scales) {
    __shared__ float squares[WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int shared_by = p.rows == 1 ? 8 : p.rows == 2 ? 4 : p.rows <= 4 ? 2 : 1;
    const int row = warp / shared_by, first = warp % shared_by * 32 + lane, step = 32 * shared_by, stride = p.K + PAD;
    const uint4* from = reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + size_t(row) * p.K);
    uint4* to = reinterpret_cast<uint4*>(xs + row * stride);
    float sum = 0.0f;
    if (row < p.rows) {
#pragma unroll 4
        for (int place = first; place < p.K / 8; place += step) {
            const uint4 x = __ldcg(from + place);
            to[place] = x;
            float y[8];
            widen<T>(y, x);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += y[i] * y[i];
        }
    }
    sum = sum_of_warp(sum);
    if (lane == 0) squares[warp] = sum;
    copies_wait<0>();
    __syncthreads();
    if (row < p.rows) {
        float total = 0.0f;
        for (int i = 0; i < shared_by; ++i) total += squares[row * shared_by + i];
        const float scale = rsqrtf(total / p.K + p.eps);
        const uint4* weights = reinterpret_cast<const uint4*>(scales);
        for (int place = first; place < p.K / 8; place += step) {
            float y[8], w[8];
            widen<T>(y, to[place]);
            widen<T>(w, weights[place]);
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] *= scale * w[i];
            to[place] = narrowed<T>(y);
        }
    }
    __syncthreads();
}

// Puts what attention found into shared memory, its parts added up by their log-sum-exps.
template <typename T> __device__ void take_parts(const Product& p, T* xs) {
    const float* x = static_cast<const float*>(p.x);
    const int pieces = p.K / 8;
    for (int place = threadIdx.x; place < p.rows * pieces; place += THREADS) {
        const int row = place / pieces, k = place % pieces * 8;
        const size_t head = size_t(row) * (p.K / p.head) + k / p.head;
        const float* lses = p.lses + head * p.parts;
        const float4* part = reinterpret_cast<const float4*>(x + head * p.parts * p.head + k % p.head);
        float largest = -INFINITY, total = 0.0f, y[8] = {};
        for (int i = 0; i < p.parts; ++i) largest = fmaxf(largest, __ldcg(lses + i));
        for (int i = 0; i < p.parts; ++i) {
            const float share = exp2f(__ldcg(lses + i) - largest);
            const float4 low = __ldcg(part + i * p.head / 4), high = __ldcg(part + i * p.head / 4 + 1);
            const float found[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            total += share;
#pragma unroll
            for (int j = 0; j < 8; ++j) y[j] += share * found[j];
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) y[j] /= total;
        *reinterpret_cast<uint4*>(xs + row * (p.K + PAD) + k) = narrowed<T>(y);
    }
    __syncthreads();
}

template <typename T, int INPUT, int OUTPUT, int NT, int I> __device__ void multiply(const Product& p) {
    extern __shared__ __align__(16) unsigned char memory[];
    __shared__ float2 sums_of_warps[2][WARPS][NT][32];
    T* xs = reinterpret_cast<T*>(memory);
    T* scales = xs + p.rows * (p.K + PAD);
    const T* weight = static_cast<const T*>(p.weight);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = lane / 4;
    constexpr int CHUNK = WARPS * I * 32, WIDTH = OUTPUT == GATE ? 8 : 8 * NT;
    const int num_tiles = (p.N + WIDTH - 1) / WIDTH, num_chunks = (p.K + CHUNK - 1) / CHUNK;
    const int own = warp * I * 32 + lane % 4 * 8;

    auto begin_of = [&](int tile, int nt) {
        const int output = OUTPUT == GATE ? tile * 8 + member : tile * WIDTH + nt * 8 + member;
        const bool there = tile < num_tiles && output < p.N;
        return there ? weight + size_t(OUTPUT == GATE ? output + nt * p.N : output) * p.K : nullptr;
    };
    auto load = [&](const T* begin, int k) { return begin && k < p.K ? load_weights(begin + k) : make_uint4(0, 0, 0, 0); };

    uint4 w[I][NT];
    const T* begins[NT];
    int tile = blockIdx.x, chunk = 0;
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) begins[nt] = begin_of(tile, nt);
#pragma unroll
    for (int i = 0; i < I; ++i)
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) w[i][nt] = load(begins[nt], own + i * 32);
    if constexpr (INPUT == NORM) {
        for (int k = threadIdx.x * 8; k < p.K; k += THREADS * 8) copy_async(scales + k, static_cast<const T*>(p.norm) + k, true);
        copies_commit();
    }
    signal_next();
    wait_for_previous();
    if constexpr (INPUT == NORM) take_normalized<T>(p, xs, scales);
    if constexpr (INPUT == PARTS) take_parts<T>(p, xs);

    // The output of a tile that a thread finishes.
    const int nt_out = threadIdx.x / 64, row_out = threadIdx.x % 64 / 8, place_out = nt_out * 8 + threadIdx.x % 8;
    const bool finishes = threadIdx.x < 8 * WIDTH && row_out < p.rows;
    const T* x = static_cast<const T*>(p.x) + size_t(member) * p.K;
    const bool has_row = member < p.rows;
    float sums[NT][4] = {};
    float before = 0.0f;
    int buffer = 0;
    while (tile < num_tiles) {
        const int output = tile * WIDTH + place_out;
        const bool writes = finishes && output < p.N;
        T* out = static_cast<T*>(p.out) + size_t(row_out) * p.N + output;
        if (OUTPUT == ADD && chunk == 0 && writes) before = Narrow<T>::wide(__ldcg(out));
        const bool ends = chunk + 1 == num_chunks;
        const int next_chunk = ends ? 0 : chunk + 1, next_tile = ends ? tile + gridDim.x : tile;
        if (ends) {
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) begins[nt] = begin_of(next_tile, nt);
        }
        uint4 xf[I];
#pragma unroll
        for (int i = 0; i < I; ++i) {
            const int k = chunk * CHUNK + own + i * 32;
            xf[i] = make_uint4(0, 0, 0, 0);
            if (has_row && k < p.K) {
                if constexpr (INPUT == PLAIN) xf[i] = __ldcg(reinterpret_cast<const uint4*>(x + k));
                else xf[i] = *reinterpret_cast<const uint4*>(xs + member * (p.K + PAD) + k);
            }
        }
#pragma unroll
        for (int i = 0; i < I; ++i)
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                Narrow<T>::multiply(sums[nt], xf[i].x, xf[i].y, w[i][nt].x, w[i][nt].y);
                Narrow<T>::multiply(sums[nt], xf[i].z, xf[i].w, w[i][nt].z, w[i][nt].w);
                w[i][nt] = load(begins[nt], next_chunk * CHUNK + own + i * 32);
            }
        if (ends) {
#pragma unroll
            for (int nt = 0; nt < NT; ++nt) {
                sums_of_warps[buffer][warp][nt][lane] = {sums[nt][0], sums[nt][1]};
                sums[nt][0] = sums[nt][1] = 0.0f;
            }
            __syncthreads();
            if (writes) {
                auto total = [&](int nt) {
                    float sum = 0.0f;
#pragma unroll
                    for (int i = 0; i < WARPS; ++i)
                        sum += reinterpret_cast<const float*>(sums_of_warps[buffer][i][nt])[threadIdx.x % 64];
                    const int at = OUTPUT == GATE ? output + nt * p.N : output;
                    if (p.bias) sum += Narrow<T>::wide(static_cast<const T*>(p.bias)[at]);
                    return Narrow<T>::wide(Narrow<T>::narrow(sum));
                };
                if constexpr (OUTPUT == GATE) *out = Narrow<T>::narrow(activated(total(0), p.activation) * total(1));
                else if constexpr (OUTPUT == ADD) *out = Narrow<T>::narrow(before + total(nt_out));
                else *out = Narrow<T>::narrow(total(nt_out));
            }
            // The other half takes the next tile's: who is late here reads on undisturbed until all meet again.
            buffer ^= 1;
        }
        tile = next_tile;
        chunk = next_chunk;
    }
}

#define KERNEL(name, T, INPUT, OUTPUT, NT, I)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, I == 4 ? 3 : 2) name(const __grid_constant__ Product p) {  \
        multiply<T, INPUT, OUTPUT, NT, I>(p);                                                           \
    }
#define KERNELS(suffix, T)                               \
    KERNEL(norm_product_##suffix, T, NORM, STORE, 2, 4)  \
    KERNEL(norm_gate_##suffix, T, NORM, GATE, 2, 4)      \
    KERNEL(parts_add_##suffix, T, PARTS, ADD, 1, 8)      \
    KERNEL(parts_add_long_##suffix, T, PARTS, ADD, 1, 12) \
    KERNEL(parts_add_wide_##suffix, T, PARTS, ADD, 2, 4) \
    KERNEL(product_add_##suffix, T, PLAIN, ADD, 1, 8)    \
    KERNEL(product_add_long_##suffix, T, PLAIN, ADD, 1, 12) \
    KERNEL(product_add_wide_##suffix, T, PLAIN, ADD, 2, 4)

KERNELS(bf16, __nv_bfloat16)
KERNELS(f16, __half)
