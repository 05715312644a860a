// Attention of many queries a row over pages, on Hopper: FlashAttention-3's division of labour (Shah et al. 2024).
//
// A block takes 128 query rows (queries times the heads that share a key head) of one row of the batch, and all keys that these
// see, in tiles from the last to the first. Four of its warps copy tiles through the page table, STAGES ahead, one box for each
// page and 64 features. Two warpgroups have 64 of the query rows each: they ask for the scores of the next tile and the sums of
// the last one, and weigh scores while the tensor cores work on what the other asked for. Blocks stay and take one piece of
// work after the other; which, and how much there is, follows from tensors on the device alone.
#include "hopper.cuh"

constexpr int ROWS = 128, THREADS = 384, WARPS = 8;
// Warps that copy keys, and as many that copy values: one warp cannot ask for boxes as fast as they come.
constexpr int PARTS = 2;

// q: box of [queries, group, 64 features]. keys, values: box of [tokens of a page, 64 features]. table: a row's pages. starts:
// [num_rows + 1]. sinks: T [heads]. out: T [num_tokens, heads, D]. scale: with log2(e); of capped scores 2 log2(e) / softcap
// times the scale, and softcap with log2(e).
struct Prefill {
    TensorMap q, keys, values;
    const int* table;
    const int* starts;
    const int* lengths;
    const void* sinks;
    void* out;
    float scale, softcap;
    int num_tokens, num_rows, num_places, num_heads, group, queries, block, table_row, table_column, window, skip_ones;
};

// Queries from `query` on, up to `stop`, of key head `head`; the key of token t is the row's number offset + t. They see keys
// begin..end between them, in tiles low..high, of which all see the tiles plain_low..plain_high whole.
struct Work {
    int row, head, query, stop, offset, begin, end, low, high, plain_low, plain_high;
    bool here;
};

template <int N> __device__ inline Work work_of(const Prefill& p, int item, int lane) {
    Work w;
    w.head = item % p.num_heads;
    // Later blocks of a row see more: they go first.
    const int place = p.num_places - 1 - item / p.num_heads;
    // Row r begins a block of its own, the one of number starts[r] / queries + r. The last one that does so here or before:
    int row = 0, among = p.num_rows + 1;
    while (among > 1) {
        const int step = (among + 31) / 32, at = lane * step;
        const bool begins = at < among && p.starts[row + at] / p.queries + row + at <= place;
        const int last = (31 - __clz(__ballot_sync(0xffffffffu, begins))) * step;
        row += last;
        among = min(step, among - last);
    }
    const bool real = row < p.num_rows;
    const int first = p.starts[row], length = real ? p.lengths[row] : 0;
    w.row = row;
    w.stop = real ? p.starts[row + 1] : p.num_tokens;
    w.query = first + (place - first / p.queries - row) * p.queries;
    w.here = w.query < w.stop && !(p.skip_ones && real && w.stop == first + 1);
    w.offset = length - w.stop;
    w.end = real ? w.offset + min(w.query + p.queries, w.stop) : 0;
    const int shared = w.offset + w.query + 1;
    w.begin = p.window ? max(shared - p.window, 0) : 0;
    w.low = w.begin / N;
    w.high = (w.end + N - 1) / N;
    w.plain_high = shared / N;
    w.plain_low = p.window ? (max(w.end - p.window, 0) + N - 1) / N : 0;
    return w;
}

// Which piece of work is a block's next one: every other time in the other direction, so that all get as much.
__device__ inline int item_of(int round) {
    const int at = blockIdx.x, blocks = gridDim.x;
    return round * blocks + (round & 1 ? blocks - 1 - at : at);
}

__device__ inline float power_of_2(float x) {
    float y;
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The two query rows of a thread, 8 apart, as they go through the tiles.
struct Rows {
    int position[2];
    float largest[2], total[2];
};

// Makes weights of scores [64, N]; returns in `factor` what to multiply with what was summed before. Scores lie as products
// leave them: element i is of row (i / 2) % 2 and of column 8 (i / 4) + 2 (lane % 4) + i % 2.
template <int N, bool SOFTCAP>
__device__ inline void weigh(
    float (&scores)[N / 2], Rows& rows, float (&factor)[2], const Prefill& p, int tile, bool masked, int lane
) {
    if (SOFTCAP) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            const float small = power_of_2(-fabsf(scores[i]) * p.scale);
            scores[i] = copysignf(__fdividef(1.0f - small, 1.0f + small) * p.softcap, scores[i]);
        }
    }
    if (masked) {
        const int first = tile * N + lane % 4 * 2, least = p.window ? p.window : 0x7fffffff;
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            const int back = rows.position[i / 2 % 2] - (first + i / 4 * 8 + i % 2);
            scores[i] = back >= 0 && back < least ? scores[i] : -INFINITY;
        }
    }
    const float scale = SOFTCAP ? 1.0f : p.scale;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float largest = rows.largest[r];
#pragma unroll
        for (int i = 2 * r; i < N / 2; i += 4) largest = fmaxf(largest, fmaxf(scores[i], scores[i + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        // A row that has seen nothing yet: minus infinity less itself is no number.
        const float base = largest == -INFINITY ? 0.0f : largest * scale;
        factor[r] = power_of_2(rows.largest[r] * scale - base);
        rows.largest[r] = largest;
        float sum = 0.0f;
#pragma unroll
        for (int i = 2 * r; i < N / 2; i += 4) {
            scores[i] = power_of_2(scores[i] * scale - base);
            scores[i + 1] = power_of_2(scores[i + 1] * scale - base);
            sum += scores[i] + scores[i + 1];
        }
        rows.total[r] = rows.total[r] * factor[r] + sum;
    }
}

// Values of tokens that no query here sees may be anything: zeros instead, by both warpgroups.
template <int D, int N> __device__ inline void clear_values(uint32_t values, const Work& w, int tile, int thread) {
    for (int piece = thread; piece < N * D / 8; piece += 256) {
        const int token = tile * N + piece / 8 % N;
        if (token < w.begin || token >= w.end)
            asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" :: "r"(values + piece * 16), "r"(0) : "memory");
    }
    stores_visible();
    named_meet(1, 256);
}

// Lanes of four exchange what they hold of a row of 32 features, two of each 8, so that each has 8 features next to one another.
__device__ inline uint4 exchange(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int lane) {
    const bool odd = lane & 1, high = lane & 2;
    const uint32_t ab = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1), cd = __shfl_xor_sync(0xffffffffu, odd ? c : d, 1);
    // Pairs of lanes: the even one has pieces of a and of c, the odd one of b and of d.
    const uint32_t x0 = odd ? ab : a, x1 = odd ? b : ab, y0 = odd ? cd : c, y1 = odd ? d : cd;
    const uint32_t z0 = __shfl_xor_sync(0xffffffffu, high ? x0 : y0, 2), z1 = __shfl_xor_sync(0xffffffffu, high ? x1 : y1, 2);
    return high ? make_uint4(z0, z1, y0, y1) : make_uint4(x0, x1, z0, z1);
}

template <typename T, int D, int N, int STAGES, bool SOFTCAP> struct Attend {
    static constexpr int Q_BYTES = ROWS * D * 2, TILE_BYTES = N * D * 2, SHARED = Q_BYTES + 2 * STAGES * TILE_BYTES + 1024;
    // Of a column of 64 features.
    static constexpr int Q_COLUMN = ROWS * 128, COLUMN = N * 128;
    // Features that one product sums.
    static constexpr int WIDTH = D < 128 ? D : 128;

    const Prefill& p;
    uint32_t q, keys, values, barriers;

    __device__ uint32_t q_full() const { return barriers; }
    __device__ uint32_t q_empty() const { return barriers + 8; }
    __device__ uint32_t keys_full(int stage) const { return barriers + 16 + 32 * stage; }
    __device__ uint32_t keys_empty(int stage) const { return barriers + 24 + 32 * stage; }
    __device__ uint32_t values_full(int stage) const { return barriers + 32 + 32 * stage; }
    __device__ uint32_t values_empty(int stage) const { return barriers + 40 + 32 * stage; }

    __device__ void start() const {
        barrier_init(q_full(), 1);
        barrier_init(q_empty(), WARPS);
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(keys_full(stage), 1);
            barrier_init(keys_empty(stage), WARPS);
            barrier_init(values_full(stage), 1);
            barrier_init(values_empty(stage), WARPS);
        }
        barriers_visible_to_boxes();
    }

    // Warps of keys and warps of values, each of which copies a part of every tile.
    __device__ void produce(int warp, int lane) const {
        const bool of_keys = warp < PARTS;
        const int part = warp % PARTS, tokens = min(p.block, N), columns = D / 64, boxes = N / tokens * columns;
        const int most = (boxes + PARTS - 1) / PARTS;
        // A lane's box of each tile.
        const int box = part * most + lane, column = box % columns, within = lane < most && box < boxes ? box / columns * tokens : 0;
        const bool has = lane < most && box < boxes;
        const int at = column * COLUMN + within * 128;
        int stage = 0, parity = 1, q_parity = 1;
        for (int round = 0; item_of(round) < p.num_places * p.num_heads; ++round) {
            const Work w = work_of<N>(p, item_of(round), lane);
            if (!w.here || w.low >= w.high) continue;
            if (of_keys && part == 0) {
                if (lane == 0) {
                    barrier_wait(q_empty(), q_parity);
                    barrier_expect(q_full(), p.group * p.queries * D * 2);
                    for (int c = 0; c < D / 64; ++c)
                        copy_box(q + c * Q_COLUMN, p.q, q_full(), c * 64, w.head * p.group, w.query);
                }
                q_parity ^= 1;
            }
            const int* table = p.table + static_cast<long long>(w.row) * p.table_row;
            const int least = w.begin / p.block, most = (w.end - 1) / p.block;
            // Blocks that nobody sees may have any page in the table.
            auto page_of = [&](int tile) {
                return table[min(max((tile * N + within) / p.block, least), most) * p.table_column];
            };
            int page = page_of(w.high - 1);
            for (int tile = w.high - 1; tile >= w.low; --tile) {
                const int from = page, offset = (tile * N + within) % p.block;
                if (tile > w.low) page = page_of(tile - 1);
                if (of_keys) {
                    barrier_wait(keys_empty(stage), parity);
                    if (lane == 0 && part == 0) barrier_expect(keys_full(stage), TILE_BYTES);
                    __syncwarp();
                    if (has)
                        copy_box(keys + stage * TILE_BYTES + at, p.keys, keys_full(stage), column * 64, offset, w.head, from);
                } else {
                    barrier_wait(values_empty(stage), parity);
                    if (lane == 0 && part == 0) barrier_expect(values_full(stage), TILE_BYTES);
                    __syncwarp();
                    if (has)
                        copy_box(values + stage * TILE_BYTES + at, p.values, values_full(stage), column * 64, offset, w.head, from);
                }
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
    }

    __device__ void ask_scores(float (&scores)[N / 2], uint64_t q_tile, int stage) const {
        const uint64_t tile = tile_at(keys + stage * TILE_BYTES, 16);
#pragma unroll
        for (int k = 0; k < D / 16; ++k)
            Product<T, N>::scores(
                scores, q_tile + (k / 4 * Q_COLUMN + k % 4 * 32) / 16, tile + (k / 4 * COLUMN + k % 4 * 32) / 16, k > 0
            );
        products_commit();
    }

    __device__ void ask_sums(float (&sums)[D / 2], const uint32_t (&weights)[N / 4], int stage) const {
        const uint64_t tile = tile_at(values + stage * TILE_BYTES, COLUMN);
#pragma unroll
        for (int k = 0; k < N / 16; ++k)
#pragma unroll
            for (int part = 0; part < D / WIDTH; ++part)
                Product<T, WIDTH>::sums(sums + part * WIDTH / 2, weights + 4 * k, tile + (k * 2048 + part * 2 * COLUMN) / 16);
        products_commit();
    }

    __device__ void consume(int half, int thread) const {
        const int lane = thread % 32, row = half * 64 + thread % 128 / 32 * 16 + lane / 4;
        const uint64_t q_tile = tile_at(q + half * 64 * 128, 16);
        int stage = 0, parity = 0, q_parity = 0;
        float scores[N / 2], sums[D / 2], factor[2];
        uint32_t weights[N / 4];
        for (int round = 0; item_of(round) < p.num_places * p.num_heads; ++round) {
            const Work w = work_of<N>(p, item_of(round), lane);
            if (!w.here) continue;
            Rows rows;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int query = w.query + (row + 8 * r) / p.group;
                rows.position[r] = row + 8 * r < p.group * p.queries && query < w.stop ? w.offset + query : -1;
                rows.largest[r] = -INFINITY;
                rows.total[r] = 0.0f;
            }
#pragma unroll
            for (int i = 0; i < D / 2; ++i) sums[i] = 0.0f;
            if (w.low < w.high) {
                barrier_wait(q_full(), q_parity);
                q_parity ^= 1;
                int tile = w.high - 1;
                barrier_wait(keys_full(stage), parity);
                products_begin();
                ask_scores(scores, q_tile, stage);
                products_wait<0>();
                if (lane == 0) barrier_arrive(keys_empty(stage));
                weigh<N, SOFTCAP>(scores, rows, factor, p, tile, tile >= w.plain_high || tile < w.plain_low, lane);
                pack(weights, scores);
                for (; tile > w.low; --tile) {
                    const int next = stage + 1 == STAGES ? 0 : stage + 1, next_parity = next == 0 ? parity ^ 1 : parity;
                    barrier_wait(keys_full(next), next_parity);
                    barrier_wait(values_full(stage), parity);
                    if (tile * N < w.begin || tile * N + N > w.end)
                        clear_values<D, N>(values + stage * TILE_BYTES, w, tile, thread);
                    products_begin();
                    ask_scores(scores, q_tile, next);
                    ask_sums(sums, weights, stage);
                    products_wait<1>();
                    if (lane == 0) barrier_arrive(keys_empty(next));
                    const bool masked = tile - 1 >= w.plain_high || tile - 1 < w.plain_low;
                    weigh<N, SOFTCAP>(scores, rows, factor, p, tile - 1, masked, lane);
                    // Long over: the compiler would wait for sums before it weighs, were there no branch between.
                    barrier_wait(q_full(), q_parity ^ 1);
                    products_wait<0>();
                    if (lane == 0) barrier_arrive(values_empty(stage));
#pragma unroll
                    for (int i = 0; i < D / 2; ++i) sums[i] *= factor[i / 2 % 2];
                    pack(weights, scores);
                    stage = next;
                    parity = next_parity;
                }
                if (lane == 0) barrier_arrive(q_empty());
                barrier_wait(values_full(stage), parity);
                if (tile * N < w.begin || tile * N + N > w.end)
                    clear_values<D, N>(values + stage * TILE_BYTES, w, tile, thread);
                products_begin();
                ask_sums(sums, weights, stage);
                products_wait<0>();
                if (lane == 0) barrier_arrive(values_empty(stage));
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            write(sums, rows, w, row, lane);
        }
    }

    __device__ void pack(uint32_t (&weights)[N / 4], const float (&scores)[N / 2]) const {
#pragma unroll
        for (int i = 0; i < N / 4; ++i) weights[i] = Narrow<T>::narrow2(scores[2 * i], scores[2 * i + 1]);
    }

    __device__ void write(float (&sums)[D / 2], Rows& rows, const Work& w, int row, int lane) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float total = rows.total[r], factor = 1.0f;
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            const int at = row + 8 * r, query = w.query + at / p.group, head = w.head * p.group + at % p.group;
            const bool here = at < p.group * p.queries && query < w.stop;
            if (p.sinks != nullptr && here) {
                constexpr float LOG2_E = 1.4426950408889634f;
                const float sink = Narrow<T>::wide(static_cast<const T*>(p.sinks)[head]) * LOG2_E;
                const float largest = rows.largest[r] * (SOFTCAP ? 1.0f : p.scale), most = fmaxf(largest, sink);
                factor = power_of_2(largest - most);
                total = total * factor + power_of_2(sink - most);
            }
            factor = total > 0.0f ? factor / total : 0.0f;
            T* out = static_cast<T*>(p.out) + (static_cast<long long>(query) * p.num_heads * p.group + head) * D;
#pragma unroll
            for (int piece = 0; piece < D / 32; ++piece) {
                uint32_t x[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int from = 16 * piece + 4 * i + 2 * r;
                    x[i] = Narrow<T>::narrow2(sums[from] * factor, sums[from + 1] * factor);
                }
                const uint4 eight = exchange(x[0], x[1], x[2], x[3], lane);
                if (here) *reinterpret_cast<uint4*>(out + 32 * piece + 8 * (lane % 4)) = eight;
            }
        }
    }
};

template <typename T, int D, int N, int STAGES, bool SOFTCAP>
__device__ inline void prefill(const Prefill& p) {
    extern __shared__ uint8_t memory[];
    __shared__ uint64_t barriers[2 + 4 * STAGES];
    using Kernel = Attend<T, D, N, STAGES, SOFTCAP>;
    const uint32_t q = (shared_address(memory) + 1023) & ~1023u, keys = q + Kernel::Q_BYTES;
    const Kernel kernel{p, q, keys, keys + STAGES * Kernel::TILE_BYTES, shared_address(barriers)};
    const int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        prefetch(p.q);
        prefetch(p.keys);
        prefetch(p.values);
        kernel.start();
    }
    __syncthreads();
    wait_for_previous();
    if (group == 0) {
        fewer_registers<40>();
        if (threadIdx.x < 2 * PARTS * 32) kernel.produce(threadIdx.x / 32, threadIdx.x % 32);
    } else {
        more_registers<232>();
        kernel.consume(group - 1, threadIdx.x - 128);
    }
}

#define KERNEL(TYPE, SUFFIX, D, N, STAGES)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                       \
        prefill_##D##_##SUFFIX(const __grid_constant__ Prefill p) { prefill<TYPE, D, N, STAGES, false>(p); }       \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                       \
        prefill_##D##_capped_##SUFFIX(const __grid_constant__ Prefill p) { prefill<TYPE, D, N, STAGES, true>(p); }
#define KERNELS(TYPE, SUFFIX)        \
    KERNEL(TYPE, SUFFIX, 64, 128, 3)  \
    KERNEL(TYPE, SUFFIX, 128, 128, 2) \
    KERNEL(TYPE, SUFFIX, 256, 64, 2)
KERNELS(__nv_bfloat16, bf16)
KERNELS(__half, f16)
