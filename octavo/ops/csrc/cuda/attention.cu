// Attention of rows that have one query each, from the product with q, k and v to what the output product takes: heads are
// normalized and rotated, the new key and value go into their page, and the keys of a row are cut into splits.
//
// A block takes one split of one row and one key head, with the G <= 8 query heads that share it. Its 4 warps take 16 tokens
// each of every 64, copied into shared memory STAGES ahead; no warp waits for another before the end. Keys of earlier steps are
// on their way before the query is known. The splits of a row and key head are a cluster: each block adds up some features of all.
// The grid does not depend on lengths: blocks behind a row's last token find nothing.
#include "cluster.cuh"

constexpr int WARPS = 4, TOKENS = 16, TILE = WARPS * TOKENS, STAGES = 3, MOST_GROUP = 8, MOST_CLUSTER = 8;

// qkv: T [rows, qkv_row]: all query heads, the key heads, the value heads. angles: float [positions, D]: cosines, then sines.
// keys, values: pages by their strides, in elements. table: a row's pages. lengths: with the new token. out: T [rows, heads, D].
struct Attention {
    const void* qkv;
    const void* q_norm;
    const void* k_norm;
    const float* angles;
    void* keys;
    void* values;
    const int* table;
    const int* lengths;
    void* out;
    long long page_stride, head_stride, offset_stride;
    float eps, scale;
    int qkv_row, group, block, table_row, table_column;
};

template <bool TRANSPOSED> __device__ inline void load_matrices(uint32_t (&x)[4], const void* at) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(at)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(at)) : "memory");
}

// Where 8 features of a token lie: pieces of a row change places so that 8 tokens' same piece lie in different banks.
template <int D> __device__ inline int place_of(int token, int piece) { return token * D + (piece ^ (token & 7)) * 8; }

// A head's features as a warp holds them: lane l has those of PAIRS pairs (i, i + D / 2) from i = l * PAIRS on.
template <typename T, int D> struct Head {
    static constexpr int HALF = D / 2, PAIRS = HALF / 32;
    float first[PAIRS], second[PAIRS];

    __device__ void load(const T* at) {
        const int i = threadIdx.x % 32 * PAIRS;
#pragma unroll
        for (int n = 0; n < PAIRS; ++n) {
            first[n] = Narrow<T>::wide(at[i + n]);
            second[n] = Narrow<T>::wide(at[i + n + HALF]);
        }
    }
    // Of what the kernel before wrote.
    __device__ void load_new(const T* at) {
        const int i = threadIdx.x % 32 * PAIRS;
#pragma unroll
        for (int n = 0; n < PAIRS; ++n) {
            const unsigned short* from = reinterpret_cast<const unsigned short*>(at);
            const unsigned short low = __ldcg(from + i + n), high = __ldcg(from + i + n + HALF);
            first[n] = Narrow<T>::wide(*reinterpret_cast<const T*>(&low));
            second[n] = Narrow<T>::wide(*reinterpret_cast<const T*>(&high));
        }
    }
    __device__ void normalize(const Head& weights, float eps) {
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < PAIRS; ++n) sum += first[n] * first[n] + second[n] * second[n];
        const float scale = rsqrtf(sum_of_warp(sum) / D + eps);
#pragma unroll
        for (int n = 0; n < PAIRS; ++n) {
            first[n] *= scale * weights.first[n];
            second[n] *= scale * weights.second[n];
        }
    }
    __device__ void rotate(const float (&cosines)[PAIRS], const float (&sines)[PAIRS]) {
#pragma unroll
        for (int n = 0; n < PAIRS; ++n) {
            const float x = first[n], y = second[n];
            first[n] = x * cosines[n] - y * sines[n];
            second[n] = y * cosines[n] + x * sines[n];
        }
    }
    __device__ void store(T* at) const {
        const int i = threadIdx.x % 32 * PAIRS;
#pragma unroll
        for (int n = 0; n < PAIRS; ++n) {
            at[i + n] = Narrow<T>::narrow(first[n]);
            at[i + n + HALF] = Narrow<T>::narrow(second[n]);
        }
    }
};

template <typename T, int D> struct Stage {
    T keys[WARPS][TOKENS * D], values[WARPS][TOKENS * D];
};

// What the warps found: sums of weighted values, the largest score, the sum of weights.
template <int D> struct Found {
    float sums[WARPS][MOST_GROUP][D];
    float largest[WARPS][MOST_GROUP], totals[WARPS][MOST_GROUP];
};

// What the blocks of a cluster found, of the features that this one adds up.
template <int D> struct Gathered {
    float sums[MOST_GROUP * D + MOST_CLUSTER * 32 * WARPS];
    float largest[MOST_CLUSTER][MOST_GROUP], totals[MOST_CLUSTER][MOST_GROUP];
};

template <typename T, int D> __device__ void attend(const Attention& p) {
    constexpr int PIECES = D / 8, AT_ONCE = 32 / PIECES;
    extern __shared__ __align__(128) unsigned char memory[];
    Stage<T, D>* stages = reinterpret_cast<Stage<T, D>*>(memory);
    __shared__ __align__(16) T queries[MOST_GROUP][D];
    __shared__ __align__(16) T new_key[D];
    __shared__ __align__(16) T new_value[D];
    __shared__ Gathered<D> gathered;
    // Others write here when all have begun.
    cluster_arrive();

    const int split = blockIdx.x, kv_head = blockIdx.y, row = blockIdx.z, splits = gridDim.x, num_kv = gridDim.y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, member = lane / 4, quad = lane % 4;
    const int length = p.lengths[row], position = length - 1;
    const int share = ((length + splits - 1) / splits + TILE - 1) / TILE * TILE;
    const int begin = split * share, end = min(begin + share, length);
    const int num_tiles = begin < end ? (end - begin + TILE - 1) / TILE : 0;
    const T* all_keys = static_cast<const T*>(p.keys) + kv_head * p.head_stride;
    const T* all_values = static_cast<const T*>(p.values) + kv_head * p.head_stride;
    const int* pages = p.table + static_cast<long long>(row) * p.table_row;
    auto place = [&](int token) {
        return pages[token / p.block * p.table_column] * p.page_stride + token % p.block * p.offset_stride;
    };

    // The warp's 16 tokens of a tile lie in one block of a page. The new token is none of them, nor are those behind it: zeros.
    auto load = [&](int tile) {
        const int first = begin + tile * TILE + warp * TOKENS;
        if (tile < num_tiles && first < end) {
            Stage<T, D>& stage = stages[tile % STAGES];
            const long long at = first < position ? place(first) : 0;
            const int piece = lane % PIECES;
#pragma unroll
            for (int token = lane / PIECES; token < TOKENS; token += AT_ONCE) {
                const bool there = first + token < position;
                const long long from = (there ? at + token * p.offset_stride : 0) + piece * 8;
                copy_async(stage.keys[warp] + place_of<D>(token, piece), all_keys + from, there);
                copy_async(stage.values[warp] + place_of<D>(token, piece), all_values + from, there);
            }
        }
        copies_commit();
    };
#pragma unroll
    for (int tile = 0; tile < STAGES; ++tile) load(tile);

    using H = Head<T, D>;
    H q_weights, k_weights;
    if (p.q_norm) {
        q_weights.load(static_cast<const T*>(p.q_norm));
        k_weights.load(static_cast<const T*>(p.k_norm));
    }
    float cosines[H::PAIRS], sines[H::PAIRS];
    const float* angles = p.angles + static_cast<long long>(position) * D;
#pragma unroll
    for (int n = 0; n < H::PAIRS; ++n) {
        cosines[n] = angles[lane * H::PAIRS + n];
        sines[n] = angles[lane * H::PAIRS + n + H::HALF];
    }
    signal_next();
    wait_for_previous();

    const T* qkv = static_cast<const T*>(p.qkv) + static_cast<long long>(row) * p.qkv_row;
    for (int head = warp; head < p.group; head += WARPS) {
        H query;
        query.load_new(qkv + (kv_head * p.group + head) * D);
        if (p.q_norm) query.normalize(q_weights, p.eps);
        query.rotate(cosines, sines);
        query.store(queries[head]);
    }
    const bool owns = begin <= position && position < end;
    if (owns && warp >= WARPS - 2) {
        const bool is_key = warp == WARPS - 2;
        const T* from = qkv + ((p.group + (is_key ? 0 : 1)) * num_kv + kv_head) * D;
        const long long to = place(position) + kv_head * p.head_stride;
        H found;
        found.load_new(from);
        if (is_key) {
            if (p.k_norm) found.normalize(k_weights, p.eps);
            found.rotate(cosines, sines);
        }
        found.store(is_key ? new_key : new_value);
        found.store(static_cast<T*>(is_key ? p.keys : p.values) + to);
    }
    __syncthreads();

    uint32_t q[D / 16][2];
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        q[step][0] = q[step][1] = 0;
        if (member < p.group) {
            q[step][0] = *reinterpret_cast<const uint32_t*>(&queries[member][step * 16 + quad * 2]);
            q[step][1] = *reinterpret_cast<const uint32_t*>(&queries[member][step * 16 + quad * 2 + 8]);
        }
    }

    float sums[PIECES][4] = {};
    float largest = -INFINITY, total = 0.0f;
    for (int tile = 0; tile < num_tiles; ++tile) {
        const int first = begin + tile * TILE + warp * TOKENS;
        copies_wait<STAGES - 1>();
        __syncwarp();
        if (first < end) {
            Stage<T, D>& stage = stages[tile % STAGES];
            T* keys = stage.keys[warp];
            T* values = stage.values[warp];
            if (first <= position && position < first + TOKENS) {
                const int token = position - first;
                if (lane < PIECES) {
                    *reinterpret_cast<uint4*>(keys + place_of<D>(token, lane)) = reinterpret_cast<uint4*>(new_key)[lane];
                    *reinterpret_cast<uint4*>(values + place_of<D>(token, lane)) = reinterpret_cast<uint4*>(new_value)[lane];
                }
                __syncwarp();
            }
            // Scores of the heads, as the matrix unit leaves them: a lane has those of head `member` and of 4 tokens.
            float scores[2][4] = {};
#pragma unroll
            for (int step = 0; step < D / 16; ++step) {
                uint32_t k[4];
                load_matrices<false>(k, keys + place_of<D>(lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
                Narrow<T>::multiply(scores[0], q[step][0], q[step][1], k[0], k[1]);
                Narrow<T>::multiply(scores[1], q[step][0], q[step][1], k[2], k[3]);
            }
            float found[4], highest = largest;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int token = first + i / 2 * 8 + quad * 2 + i % 2;
                found[i] = token < length ? scores[i / 2][i % 2] * p.scale : -INFINITY;
                highest = fmaxf(highest, found[i]);
            }
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
            const float factor = exp2f(largest - highest);
            largest = highest;
            total *= factor;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                found[i] = exp2f(found[i] - highest);
                total += found[i];
            }
            const uint32_t low = Narrow<T>::narrow2(found[0], found[1]), high = Narrow<T>::narrow2(found[2], found[3]);
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                sums[piece][0] *= factor;
                sums[piece][1] *= factor;
            }
#pragma unroll
            for (int piece = 0; piece < PIECES; piece += 2) {
                uint32_t v[4];
                load_matrices<true>(v, values + place_of<D>(lane / 8 % 2 * 8 + lane % 8, piece + lane / 16));
                Narrow<T>::multiply(sums[piece], low, high, v[0], v[1]);
                Narrow<T>::multiply(sums[piece + 1], low, high, v[2], v[3]);
            }
        }
        __syncwarp();
        load(tile + STAGES);
    }
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);

    // The warps' findings take the place of the stages.
    Found<D>& found = *reinterpret_cast<Found<D>*>(memory);
    copies_wait<0>();
    __syncthreads();
    if (member < p.group) {
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
            *reinterpret_cast<float2*>(&found.sums[warp][member][piece * 8 + quad * 2]) = {sums[piece][0], sums[piece][1]};
        if (quad == 0) {
            found.largest[warp][member] = largest;
            found.totals[warp][member] = total;
        }
    }
    __syncthreads();
    const int rank = cluster_rank(), size = cluster_size();
    cluster_wait();
    for (int at = threadIdx.x; at < p.group * D; at += 32 * WARPS) {
        const int head = at / D, feature = at % D;
        float highest = -INFINITY, sum = 0.0f, weight = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) highest = fmaxf(highest, found.largest[i][head]);
        // A warp that found nothing: minus infinity less itself is no number.
        const float base = highest == -INFINITY ? 0.0f : highest;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) {
            const float factor = exp2f(found.largest[i][head] - base);
            sum += factor * found.sums[i][head][feature];
            weight += factor * found.totals[i][head];
        }
        const int piece = at / (32 * WARPS), owner = piece % size;
        write_to(&gathered.sums[(piece / size * size + rank) * 32 * WARPS + threadIdx.x], owner, sum);
        if (feature % 32 == 0) {
            for (int other = feature / 32; other < size; other += D / 32) {
                write_to(&gathered.largest[rank][head], other, highest);
                write_to(&gathered.totals[rank][head], other, weight);
            }
        }
    }
    cluster_arrive();
    cluster_wait();
    for (int at = rank * 32 * WARPS + threadIdx.x, piece = 0; at < p.group * D; at += size * 32 * WARPS, ++piece) {
        const int head = at / D, feature = at % D;
        float highest = -INFINITY, sum = 0.0f, weight = 0.0f;
        for (int i = 0; i < size; ++i) highest = fmaxf(highest, gathered.largest[i][head]);
        const float base = highest == -INFINITY ? 0.0f : highest;
        for (int i = 0; i < size; ++i) {
            const float factor = exp2f(gathered.largest[i][head] - base);
            sum += factor * gathered.sums[(piece * size + i) * 32 * WARPS + threadIdx.x];
            weight += factor * gathered.totals[i][head];
        }
        const long long head_of_all = (static_cast<long long>(row) * num_kv + kv_head) * p.group + head;
        static_cast<T*>(p.out)[head_of_all * D + feature] = Narrow<T>::narrow(weight > 0.0f ? sum / weight : 0.0f);
    }
}

#define KERNEL(name, T, D)                                                                            \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) name(const __grid_constant__ Attention p) { \
        attend<T, D>(p);                                                                              \
    }
KERNEL(attention_64_bf16, __nv_bfloat16, 64)
KERNEL(attention_128_bf16, __nv_bfloat16, 128)
KERNEL(attention_64_f16, __half, 64)
KERNEL(attention_128_f16, __half, 128)
