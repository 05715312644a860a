// Causal attention over keys and values that lie in pages, decode rows and prompts alike.
// levels: scalar avx2 avx512 bf16 neon
//
// Work is cut into items: a tile of a row's tokens, with all G query heads that share a key head, over a span of its keys.
// Many queries lie side by side in registers, a key's or a value's numbers are given to all of them as they lie in its page: an
// item walks its keys in chunks and keeps of each query a running maximum, sum and output (Milakov & Gimelshein 2018). Of few
// queries, the features lie side by side instead. Few queries, and rows of one token, have their keys cut into spans of a fixed
// length, whose parts are merged after: what comes out does not depend on the threads, nor on what other rows there are.
//
// Where both factors are bfloat16 and the level adds up products of pairs of them, keys are multiplied as they are, weights
// rounded to bfloat16. Scores are logarithms to base 2.
//
// Shapes: M = G * tokens queries of an item, N keys of a chunk, D features of a head, E of a value.
#include "vector.h"

OCTAVO_BEGIN

struct PagedAttentionArgs {
    const void *q, *key_pages, *value_pages;
    const int32_t *table, *query_starts, *lengths;
    const float* slopes;
    const void* sinks;
    void* out;
    int64_t dtype, sinks_dtype, num_tokens, num_rows, num_heads, num_kv_heads, dim, value_dim, block;
    int64_t q_token, q_head, key_page, key_head, key_place, value_page, value_head, value_place, table_row, table_column;
    // Tokens that a query sees, 0 for all.
    int64_t window;
    // softcap: 0 for none.
    double scale, softcap;
    // Pages of leading tokens that rows share, and how many of a row's tokens those are; null if nothing is shared.
    const int32_t *span_table, *span_skips;
    int64_t span_column;
};

constexpr int WIDTH = Floats::WIDTH;
// Queries of a tile, keys of a chunk and of a span.
constexpr int64_t TILE_QUERIES = 192, CHUNK = 64, SPAN = 256;
// Below so many queries, registers are filled with features.
constexpr int64_t FEW_QUERIES = 8;
// Sums that are kept in registers: rows of vectors of queries. BLOCK queries are taken at a time.
constexpr int MOST_ROWS = 6, MOST_VECTORS = WIDTH == 8 ? 2 : 4;
constexpr int64_t BLOCK = MOST_VECTORS * WIDTH;
// HIDDEN: taken off a score for each token that it lies beyond what is seen; any peak is above LEAST.
constexpr float LOG2E = 1.44269504f, HIDDEN = 1e30f, LEAST = -3e38f;

struct Item {
    int64_t row, head, first_token, num_tokens, begin, end;
    // Where the item's part lies among those that are merged, -1 if it is the whole.
    int64_t part;
};

inline int64_t rounded_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }
inline int64_t padded(int64_t size) { return rounded_up(size, WIDTH); }

// Hands out an item's scratch memory, float by float.
struct Room {
    float* next;
    float* take(int64_t size) {
        float* found = next;
        next += rounded_up(size, 16);
        return found;
    }
};

// A part: output [padded(E)], peak, total.
inline int64_t part_size(const PagedAttentionArgs& a) { return padded(a.value_dim) + 16; }
inline int64_t group_of(const PagedAttentionArgs& a) { return a.num_heads / a.num_kv_heads; }

// What is known of an item's queries, and where the answers go.
struct Queries {
    int64_t group, count, start, position;
    Queries(const PagedAttentionArgs& a, const Item& item) {
        group = group_of(a);
        count = group * item.num_tokens;
        start = a.query_starts[item.row] + item.first_token;
        // Of the first token.
        position = a.lengths[item.row] - a.query_starts[item.row + 1] + start;
    }
};

template <class T>
inline const T* query(const PagedAttentionArgs& a, const Item& item, const Queries& queries, int64_t m) {
    return static_cast<const T*>(a.q) + (queries.start + m / queries.group) * a.q_token +
           (item.head * queries.group + m % queries.group) * a.q_head;
}

// Where keys and values of tokens [first, first + count) lie; what the row does not see is said to lie where something does.
template <class T>
inline void find_rows(const PagedAttentionArgs& a, const Item& item, int64_t first, int64_t count, const T** keys,
                      const T** values) {
    const int32_t* pages = a.table + item.row * a.table_row;
    const T* key_base = static_cast<const T*>(a.key_pages) + item.head * a.key_head;
    const T* value_base = static_cast<const T*>(a.value_pages) + item.head * a.value_head;
    int64_t shared = a.span_table == nullptr || a.window != 0 ? 0 : a.span_skips[item.row];
    for (int64_t n = 0; n < count;) {
        int64_t token = min64(max64(first + n, item.begin), item.end - 1);
        int64_t number = token / a.block, place = token % a.block;
        int64_t page = token < shared ? a.span_table[number * a.span_column] : pages[number * a.table_column];
        const T* key = key_base + page * a.key_page + place * a.key_place;
        const T* value = value_base + page * a.value_page + place * a.value_place;
        keys[n] = key;
        values[n++] = value;
        for (; n < count && first + n > item.begin && first + n < item.end && ++place < a.block; n++) {
            keys[n] = key += a.key_place;
            values[n] = value += a.value_place;
        }
    }
}

template <class T>
inline void prefetch(const T* row, int64_t size) {
    const char* from = reinterpret_cast<const char*>(row);
    for (int64_t i = 0; i < size * static_cast<int64_t>(sizeof(T)); i += 64) __builtin_prefetch(from + i);
}

// Scores that are not just products: capped, less for a distance, or not to be seen. `distance` is from key to query.
inline Floats adjusted(const PagedAttentionArgs& a, Floats score, Floats distance, Floats slope, bool masked) {
    if (a.softcap != 0) {
        Floats one = broadcast(1.0f), two = broadcast(2.0f);
        Floats grown = exponential(score * broadcast(static_cast<float>(2 / a.softcap)));
        score = broadcast(static_cast<float>(a.softcap) * LOG2E) * (one - two / (grown + one));
    }
    if (a.slopes != nullptr) score = score - slope * distance;
    if (masked) {
        Floats hidden = smaller(broadcast(0.0f), distance);
        if (a.window != 0) hidden = hidden + smaller(broadcast(0.0f), broadcast(static_cast<float>(a.window - 1)) - distance);
        score = fused(hidden, broadcast(HIDDEN), score);
    }
    return score;
}

inline Floats factor_of(const PagedAttentionArgs& a) {
    return broadcast(static_cast<float>(a.scale) * (a.softcap != 0 ? 1.0f : LOG2E));
}

// Keeps an item's part of a query's answer, or writes the answer; the sink, if there is one, takes its share without giving a
// value.
template <class T>
inline void finish(const PagedAttentionArgs& a, int64_t token, int64_t head, const float* sums, float peak, float total) {
    T* out = static_cast<T*>(a.out) + (token * a.num_heads + head) * a.value_dim;
    float shrink = 1.0f;
    if (a.sinks != nullptr) {
        float sink = 0.0f;
        with_dtype(a.sinks_dtype, [&](auto kind) { sink = widen(static_cast<const decltype(kind)*>(a.sinks)[head]) * LOG2E; });
        float top = sink > peak ? sink : peak;
        shrink = exp2f(peak - top);
        total = total * shrink + exp2f(sink - top);
    }
    Floats scale = broadcast(shrink / total);
    each_vector(a.value_dim, [&](int64_t i, int64_t n) { store_part(out + i, load(sums + i) * scale, n); });
}

template <class T>
inline void give(const PagedAttentionArgs& a, const Item& item, const Queries& queries, float* parts, int64_t m,
                 const float* sums, float peak, float total) {
    if (item.part < 0) {
        return finish<T>(a, queries.start + m / queries.group, item.head * queries.group + m % queries.group, sums, peak, total);
    }
    float* part = parts + (item.part + m) * part_size(a);
    memcpy(part, sums, padded(a.value_dim) * sizeof(float));
    part[padded(a.value_dim)] = peak;
    part[padded(a.value_dim) + 1] = total;
}

// ---- Many queries -----------------------------------------------------------------------------------------------------------

// sum + a * b, of numbers or of pairs of bfloat16.
template <bool PAIRS>
inline Floats added(Floats a, Floats b, Floats sum) {
#if defined(__AVX512BF16__)
    if constexpr (PAIRS) return {_mm512_dpbf16_ps(sum.v, (__m512bh)a.v, (__m512bh)b.v)};
#endif
    return fused(a, b, sum);
}

// c[R][V vectors] of the products of factor(r, k) and b[depth][BLOCK]: times `scale` if FRESH, else added to what is there.
template <bool PAIRS, bool FRESH, int R, int V, class Factor>
inline void multiply_tile(const Factor& factor, const float* b, float* c, int64_t depth, Floats scale) {
    Floats sums[R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sums[r][v] = FRESH ? broadcast(0.0f) : load(c + r * BLOCK + v * WIDTH);
    for (int64_t k = 0; k < depth; k++) {
        Floats row[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) row[v] = load(b + k * BLOCK + v * WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            Floats one = broadcast(factor(r, k));
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) sums[r][v] = added<PAIRS>(one, row[v], sums[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) store(c + r * BLOCK + v * WIDTH, FRESH ? sums[r][v] * scale : sums[r][v]);
}

template <bool PAIRS, bool FRESH, int R, int V, class Factor, class Ahead>
inline void multiply_rows(const Factor& factor, const Ahead& ahead, const float* b, float* c, int64_t row, int64_t rows,
                          int64_t depth, Floats scale) {
    for (; row + R <= rows; row += R) {
        ahead(row, row + R);
        auto from_row = [&](int r, int64_t k) { return factor(row + r, k); };
        multiply_tile<PAIRS, FRESH, R, V>(from_row, b, c + row * BLOCK, depth, scale);
    }
    if constexpr (R > 1) multiply_rows<PAIRS, FRESH, (R > 4 ? 4 : R / 2), V>(factor, ahead, b, c, row, rows, depth, scale);
}

// Calls ahead(begin, end) before it multiplies rows [begin, end).
template <bool PAIRS, bool FRESH, int V = MOST_VECTORS, class Factor, class Ahead>
inline void multiply(const Factor& factor, const Ahead& ahead, const float* b, float* c, int64_t rows, int64_t depth,
                     int64_t vectors, Floats scale) {
    if constexpr (V > 1) {
        if (vectors < V) return multiply<PAIRS, FRESH, V - 1>(factor, ahead, b, c, rows, depth, vectors, scale);
    }
    multiply_rows<PAIRS, FRESH, MOST_ROWS, V>(factor, ahead, b, c, 0, rows, depth, scale);
}

// BLOCK queries: the features of each, or pairs of them, [depth][BLOCK], and what there is of its answer.
struct Block {
    float *q, *out, *peaks, *totals, *positions, *slopes;
    int64_t vectors, oldest, newest;
};

// Where a chunk's keys and values lie.
template <class T>
struct Rows {
    int64_t count;
    const T *keys[CHUNK], *values[CHUNK];
};

// A chunk of keys from `first` on: rows of features, and of values, or of pairs of two keys' values.
struct Chunk {
    int64_t first, count;
    const float *keys[CHUNK], *values[CHUNK];
};

#if defined(__AVX512BF16__)
inline Floats pair_of(Floats low, Floats high) {
    alignas(64) static constexpr uint16_t ORDER[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high.v, low.v);
    return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(ORDER), both))};
}
#endif

// From scores [from, seen) of a vector of queries to weights 2^(score - peak); what a query has so far shrinks if its peak
// rises. Pairs of weights are put where they are read next: the pair of keys n and n + 1 in row n / 2.
template <bool PAIRS>
inline void weigh(const Block& block, float* scores, int64_t from, int64_t seen, int64_t value_dim, int64_t column) {
    Floats before = load(block.peaks + column), peak = before;
    for (int64_t n = from; n < seen; n++) peak = larger(peak, load(scores + n * BLOCK + column));
    Floats shrink = power_of_two(before - peak), total = load(block.totals + column) * shrink;
    store(block.peaks + column, peak);
    if (maximum(peak - before) > 0)
        for (int64_t i = 0; i < value_dim; i++) {
            float* sum = block.out + i * BLOCK + column;
            store(sum, load(sum) * shrink);
        }
    auto weight_of = [&](int64_t n) {
        Floats weight = power_of_two(load(scores + n * BLOCK + column) - peak);
        total = total + weight;
        return weight;
    };
#if defined(__AVX512BF16__)
    if constexpr (PAIRS) {
        for (int64_t n = from; n < seen; n += 2) {
            Floats low = weight_of(n), high = n + 1 < seen ? weight_of(n + 1) : broadcast(0.0f);
            store(scores + n / 2 * BLOCK + column, pair_of(low, high));
        }
    }
#endif
    if constexpr (!PAIRS)
        for (int64_t n = from; n < seen; n++) store(scores + n * BLOCK + column, weight_of(n));
    store(block.totals + column, total);
}

// next: what is asked for meanwhile.
template <bool PAIRS, class T>
inline void attend_chunk(const PagedAttentionArgs& a, const Block& block, const Chunk& chunk, const Rows<T>& next, float* scores) {
    constexpr int64_t STEP = PAIRS ? 2 : 1;
    // Of the chunk, what somebody in the block sees.
    int64_t seen = min64(chunk.count, block.newest + 1 - chunk.first), from = 0;
    if (a.window != 0) from = max64(0, block.oldest + 1 - a.window - chunk.first) / STEP * STEP;
    if (from >= seen) return;
    auto key = [&](int64_t r, int64_t k) { return chunk.keys[from + r][k]; };
    auto next_keys = [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < min64(end, next.count); n++) prefetch(next.keys[n], a.dim);
    };
    multiply<PAIRS, true>(key, next_keys, block.q, scores + from * BLOCK, seen - from, (a.dim + STEP - 1) / STEP, block.vectors,
                          factor_of(a));
    bool masked = block.oldest < chunk.first + seen - 1 || (a.window != 0 && block.newest - a.window >= chunk.first + from);
    if (masked || a.softcap != 0 || a.slopes != nullptr)
        for (int64_t i = 0; i < block.vectors * WIDTH; i += WIDTH) {
            Floats position = load(block.positions + i), slope = load(block.slopes + i);
            for (int64_t n = from; n < seen; n++) {
                Floats distance = position - broadcast(static_cast<float>(chunk.first + n));
                store(scores + n * BLOCK + i, adjusted(a, load(scores + n * BLOCK + i), distance, slope, masked));
            }
        }
    for (int64_t i = 0; i < block.vectors * WIDTH; i += WIDTH) weigh<PAIRS>(block, scores, from, seen, a.value_dim, i);
    const float* const* values = chunk.values + from / STEP;
    auto value = [&](int64_t r, int64_t k) { return values[k][r]; };
    auto next_values = [&](int64_t begin, int64_t end) {
        for (int64_t n = begin * CHUNK / a.value_dim; n < min64(end * CHUNK / a.value_dim, next.count); n++)
            prefetch(next.values[n], a.value_dim);
    };
    multiply<PAIRS, false>(value, next_values, scores + from / STEP * BLOCK, block.out, a.value_dim,
                           (seen - from + STEP - 1) / STEP, block.vectors, broadcast(1.0f));
}

// Makes a chunk of its rows. What cannot be multiplied as it lies is put into `copies`.
template <bool PAIRS, class T>
inline void read_chunk(const PagedAttentionArgs& a, const Item& item, const Rows<T>& rows, Chunk& chunk, float* copies) {
    const T *const *keys = rows.keys, *const *values = rows.values;
    chunk.count = rows.count;
    for (int64_t n = 0; n < chunk.count; n++) {
        if constexpr (PAIRS || sizeof(T) == 4) {
            chunk.keys[n] = reinterpret_cast<const float*>(keys[n]);
        } else {
            each_vector(a.dim, [&](int64_t i, int64_t size) { store(copies + i, load_part(keys[n] + i, size)); });
            chunk.keys[n] = copies;
            copies += padded(a.dim);
        }
        if constexpr (PAIRS) {
            if (n % 2 != 0) continue;
            // Neither what lies before the item's keys nor what lies behind them is a number.
            uint32_t first = chunk.first + n < item.begin ? 0 : ~0u, second = n + 1 < chunk.count ? ~0u : 0;
            const uint16_t *low = &values[n]->bits, *high = &values[n + (second != 0)]->bits;
            uint32_t* to = reinterpret_cast<uint32_t*>(copies);
            for (int64_t i = 0; i < a.value_dim; i++) to[i] = (low[i] & first) | (static_cast<uint32_t>(high[i]) << 16 & second << 16);
            chunk.values[n / 2] = copies;
            copies += padded(a.value_dim);
        } else if constexpr (sizeof(T) == 4) {
            chunk.values[n] = values[n];
        } else {
            each_vector(a.value_dim, [&](int64_t i, int64_t size) { store(copies + i, load_part(values[n] + i, size)); });
            chunk.values[n] = copies;
            copies += padded(a.value_dim);
        }
    }
}

template <bool PAIRS, class T>
inline Block make_block(const PagedAttentionArgs& a, const Item& item, const Queries& queries, int64_t first, Room& room) {
    int64_t depth = PAIRS ? (a.dim + 1) / 2 : a.dim, count = min64(BLOCK, queries.count - first);
    Block block = {room.take(depth * BLOCK), room.take(a.value_dim * BLOCK), room.take(BLOCK), room.take(BLOCK), room.take(BLOCK),
                   room.take(BLOCK), padded(count) / WIDTH, queries.position + first / queries.group,
                   queries.position + (first + count - 1) / queries.group};
    memset(block.out, 0, a.value_dim * BLOCK * sizeof(float));
    for (int64_t m = 0; m < BLOCK; m++) {
        // Who fills up the last vector sees what the last query does.
        int64_t of = first + min64(m, count - 1);
        const T* from = query<T>(a, item, queries, of);
        if constexpr (PAIRS) {
            for (int64_t i = 0; i < depth; i++) memcpy(block.q + i * BLOCK + m, from + 2 * i, 4);
        } else {
            for (int64_t i = 0; i < depth; i++) block.q[i * BLOCK + m] = widen(from[i]);
        }
        block.peaks[m] = LEAST;
        block.totals[m] = 0.0f;
        block.positions[m] = static_cast<float>(queries.position + of / queries.group);
        block.slopes[m] = a.slopes == nullptr ? 0.0f : a.slopes[item.head * queries.group + of % queries.group] * LOG2E;
    }
    return block;
}

template <bool PAIRS, class T>
inline void attend_many(const PagedAttentionArgs& a, const Item& item, float* parts) {
    Queries queries(a, item);
    int64_t num_blocks = (queries.count + BLOCK - 1) / BLOCK, room_of_rows = padded(a.dim) + padded(a.value_dim);
    int64_t room_of_block = (a.dim + a.value_dim + 4) * BLOCK + 128, header = rounded_up(num_blocks * sizeof(Block), 64) / 4;
    int64_t size = header + num_blocks * room_of_block + CHUNK * (BLOCK + room_of_rows) + 128 + padded(a.value_dim);
    Room room = {static_cast<float*>(scratch(0, size * sizeof(float)))};
    Block* blocks = reinterpret_cast<Block*>(room.take(header));
    float *scores = room.take(CHUNK * BLOCK), *copies = room.take(CHUNK * room_of_rows), *answer = room.take(padded(a.value_dim));
    for (int64_t i = 0; i < num_blocks; i++) blocks[i] = make_block<PAIRS, T>(a, item, queries, i * BLOCK, room);
    Chunk chunk;
    Rows<T> rows, next;
    const Rows<T> none = {};
    // Chunks begin at the same tokens whatever the tile.
    auto find = [&](int64_t first) {
        next.count = max64(0, min64((first / CHUNK + 1) * CHUNK, item.end) - first);
        find_rows(a, item, first, next.count, next.keys, next.values);
    };
    find(PAIRS ? item.begin & ~1 : item.begin);
    for (int64_t first = PAIRS ? item.begin & ~1 : item.begin; first < item.end; first += rows.count) {
        rows = next;
        chunk.first = first;
        read_chunk<PAIRS, T>(a, item, rows, chunk, copies);
        find(first + rows.count);
        for (int64_t i = 0; i < num_blocks; i++) attend_chunk<PAIRS, T>(a, blocks[i], chunk, i == 0 ? next : none, scores);
    }
    for (int64_t m = 0; m < queries.count; m++) {
        const Block& block = blocks[m / BLOCK];
        for (int64_t i = 0; i < a.value_dim; i++) answer[i] = block.out[i * BLOCK + m % BLOCK];
        give<T>(a, item, queries, parts, m, answer, block.peaks[m % BLOCK], block.totals[m % BLOCK]);
    }
}

// ---- Few queries ------------------------------------------------------------------------------------------------------------

// Keys whose memory is asked for before they are multiplied.
constexpr int64_t AHEAD = 24;

// Products of one query and WIDTH keys.
template <class T>
inline Floats dots(const float* q, const T* const* keys, int64_t dim) {
    Floats found[WIDTH];
    for (Floats& one : found) one = broadcast(0.0f);
    each_vector(dim, [&](int64_t i, int64_t size) {
        Floats x = load(q + i);
#pragma GCC unroll 16
        for (int n = 0; n < WIDTH; n++) found[n] = fused(x, load_part(keys[n] + i, size), found[n]);
    });
    return sums(found);
}

#if defined(__AVX512BF16__)
inline Floats dots(const bf16* q, const bf16* const* keys, int64_t dim) {
    Floats found[WIDTH];
    for (Floats& one : found) one = broadcast(0.0f);
    for (int64_t i = 0; i < dim; i += 32) {
        const auto mask = static_cast<__mmask32>(dim - i < 32 ? (1u << (dim - i)) - 1 : ~0u);
        const auto x = (__m512bh)_mm512_loadu_si512(q + i);
#pragma GCC unroll 16
        for (int n = 0; n < WIDTH; n++)
            found[n].v = _mm512_dpbf16_ps(found[n].v, x, (__m512bh)_mm512_maskz_loadu_epi16(mask, keys[n] + i));
    }
    return sums(found);
}
#endif

// A query as dots() takes it.
template <class T>
struct Narrow {
    using Type = float;
};
#if defined(__AVX512BF16__)
template <>
struct Narrow<bf16> {
    using Type = bf16;
};
#endif

// out[M][E] of weights [M][SPAN] and the rows of `count` keys: N vectors from `column` on, `last` lanes of the last count.
template <int M, int N, class T>
inline void add_values(const float* weights, const T* const* values, int64_t count, int64_t column, int64_t last, int64_t fetched,
                       float* out, int64_t out_row) {
    Floats sums[M][N];
    for (auto& of_query : sums)
        for (auto& one : of_query) one = broadcast(0.0f);
    for (int64_t k = 0; k < count; k++) {
        if (fetched != 0) prefetch(values[k + AHEAD], fetched);
        Floats row[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) row[n] = load_part(values[k] + column + n * WIDTH, n + 1 < N ? WIDTH : last);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++) {
            Floats weight = broadcast(weights[m * SPAN + k]);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) sums[m][n] = fused(weight, row[n], sums[m][n]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) store(out + m * out_row + column + n * WIDTH, sums[m][n]);
}

template <int M, class T>
inline void add_all_values(const float* weights, const T* const* values, int64_t count, int64_t value_dim, float* out,
                           int64_t out_row) {
    constexpr int N = WIDTH == 8 ? 2 : 4;
    int64_t column = 0;
    for (; column + N * WIDTH <= value_dim; column += N * WIDTH)
        add_values<M, N>(weights, values, count, column, WIDTH, column == 0 ? value_dim : 0, out, out_row);
    for (; column < value_dim; column += WIDTH)
        add_values<M, 1>(weights, values, count, column, min64(WIDTH, value_dim - column), 0, out, out_row);
}

// Scores [count] of one query become weights; returns its peak and the sum of the weights.
inline void weigh_keys(const PagedAttentionArgs& a, float* scores, int64_t first, int64_t count, int64_t position, int64_t head,
                       float* peak, float* total) {
    int64_t from = a.window == 0 ? 0 : min64(count, max64(0, position + 1 - a.window - first));
    int64_t to = max64(0, min64(count, position + 1 - first)), whole = padded(count);
    if (a.softcap != 0 || a.slopes != nullptr) {
        alignas(64) float distances[WIDTH];
        for (int64_t n = 0; n < whole; n += WIDTH) {
            for (int i = 0; i < WIDTH; i++) distances[i] = static_cast<float>(position - first - n - i);
            Floats slope = broadcast(a.slopes == nullptr ? 0.0f : a.slopes[head] * LOG2E);
            store(scores + n, adjusted(a, load(scores + n), load(distances), slope, false));
        }
    }
    for (int64_t n = 0; n < from; n++) scores[n] = LEAST;
    for (int64_t n = to; n < whole; n++) scores[n] = LEAST;
    Floats most = broadcast(LEAST), sum_of = broadcast(0.0f);
    for (int64_t n = 0; n < whole; n += WIDTH) most = larger(most, load(scores + n));
    *peak = maximum(most);
    for (int64_t n = 0; n < whole; n += WIDTH) {
        Floats weight = power_of_two(load(scores + n) - broadcast(*peak));
        store(scores + n, weight);
        sum_of = sum_of + weight;
    }
    *total = sum(sum_of);
}

template <class T>
inline void attend_few(const PagedAttentionArgs& a, const Item& item, const Item& next, float* parts) {
    using Q = typename Narrow<T>::Type;
    Queries queries(a, item);
    int64_t q_row = rounded_up(a.dim, 32), out_row = padded(a.value_dim), count = item.end - item.begin;
    Room room = {static_cast<float*>(scratch(0, FEW_QUERIES * (q_row + SPAN + out_row + 64) * sizeof(float)))};
    Q* q = reinterpret_cast<Q*>(room.take(FEW_QUERIES * q_row));
    float *scores = room.take(FEW_QUERIES * SPAN), *out = room.take(FEW_QUERIES * out_row);
    memset(q, 0, queries.count * q_row * sizeof(Q));
    for (int64_t m = 0; m < queries.count; m++) {
        const T* from = query<T>(a, item, queries, m);
        for (int64_t i = 0; i < a.dim; i++) narrow(widen(from[i]), q + m * q_row + i);
    }
    // Behind the keys is asked for the first values, and behind these for the next item's keys.
    const T *keys[SPAN + AHEAD + WIDTH], *values[SPAN + AHEAD], *unused[AHEAD];
    find_rows(a, item, item.begin, padded(count), keys, values);
    for (int64_t n = 0; n < AHEAD + WIDTH; n++) keys[padded(count) + n] = values[min64(n, count - 1)];
    find_rows(a, next, next.begin, AHEAD, values + count, unused);
    Floats factor = factor_of(a);
    for (int64_t n = 0; n < count; n += WIDTH) {
        for (int64_t i = n; i < n + WIDTH; i++) prefetch(keys[i + AHEAD], a.dim);
        for (int64_t m = 0; m < queries.count; m++) store(scores + m * SPAN + n, dots(q + m * q_row, keys + n, a.dim) * factor);
    }
    float peaks[FEW_QUERIES], totals[FEW_QUERIES];
    for (int64_t m = 0; m < queries.count; m++)
        weigh_keys(a, scores + m * SPAN, item.begin, count, queries.position + m / queries.group,
                   item.head * queries.group + m % queries.group, peaks + m, totals + m);
    for (int64_t m = 0; m < queries.count; m += 4) {
        const float* weights = scores + m * SPAN;
        float* to = out + m * out_row;
        switch (min64(4, queries.count - m)) {
            case 4: add_all_values<4>(weights, values, count, a.value_dim, to, out_row); break;
            case 3: add_all_values<3>(weights, values, count, a.value_dim, to, out_row); break;
            case 2: add_all_values<2>(weights, values, count, a.value_dim, to, out_row); break;
            default: add_all_values<1>(weights, values, count, a.value_dim, to, out_row);
        }
    }
    for (int64_t m = 0; m < queries.count; m++) give<T>(a, item, queries, parts, m, out + m * out_row, peaks[m], totals[m]);
}

template <class T>
inline void attend(const PagedAttentionArgs& a, const Item& item, const Item& next, float* parts) {
    if (item.num_tokens * group_of(a) < FEW_QUERIES) return attend_few<T>(a, item, next, parts);
#if defined(__AVX512BF16__)
    // Features are multiplied in pairs.
    if constexpr (sizeof(T) == 2 && sizeof(typename Narrow<T>::Type) == 2) {
        if (a.dim % 2 == 0) return attend_many<true, T>(a, item, parts);
    }
#endif
    attend_many<false, T>(a, item, parts);
}

// ---- All rows ---------------------------------------------------------------------------------------------------------------

// Merges `count` parts of one query by their peaks and totals into the first.
inline void merge(const PagedAttentionArgs& a, float* first, int64_t stride, int64_t count) {
    int64_t row = padded(a.value_dim);
    float peak = first[row];
    for (int64_t i = 1; i < count; i++)
        if (first[i * stride + row] > peak) peak = first[i * stride + row];
    float total = 0.0f;
    for (int64_t i = 0; i < count; i++) {
        float* part = first + i * stride;
        float shrink = exp2f(part[row] - peak);
        total += part[row + 1] * shrink;
        each_vector(a.value_dim, [&](int64_t d, int64_t) {
            Floats scaled_part = load(part + d) * broadcast(shrink);
            store(first + d, i == 0 ? scaled_part : load(first + d) + scaled_part);
        });
    }
    first[row] = peak;
    first[row + 1] = total;
}

// How a row is cut: tiles of tokens, and spans of keys. parts: what it leaves to be merged, and where in all of them.
struct Cut {
    int64_t num_tokens, tile, tiles, spans, parts, first_part;
};

inline Cut cut_of(const PagedAttentionArgs& a, int64_t row) {
    int64_t tokens = a.query_starts[row + 1] - a.query_starts[row], length = a.lengths[row], group = group_of(a);
    int64_t begin = a.window == 0 ? 0 : max64(0, length - tokens + 1 - a.window), tile = max64(1, TILE_QUERIES / group);
    bool is_cut = tokens == 1 || (tokens > 0 && tokens * group < FEW_QUERIES);
    int64_t spans = is_cut ? max64(1, (length - begin + SPAN - 1) / SPAN) : 1;
    return {tokens, tile, (tokens + tile - 1) / tile, spans, spans > 1 ? spans * tokens * a.num_heads : 0, 0};
}

// Adds a row's items to those before; returns how much there is to do.
inline int64_t cut_row(const PagedAttentionArgs& a, int64_t row, const Cut& cut, Item*& next) {
    int64_t cached = a.lengths[row] - cut.num_tokens, group = group_of(a), part = cut.first_part, work = 0;
    for (int64_t head = 0; head < a.num_kv_heads; head++) {
        // The last tiles have the most to do and go first.
        for (int64_t tile = cut.tiles - 1; tile >= 0; tile--) {
            int64_t first = tile * cut.tile, last = min64(cut.num_tokens, first + cut.tile);
            int64_t begin = a.window == 0 ? 0 : max64(0, cached + first + 1 - a.window);
            for (int64_t span = 0; span < cut.spans; span++) {
                int64_t from = begin + span * SPAN, to = cut.spans == 1 ? cached + last : min64(cached + last, from + SPAN);
                work += (to - from) * (last - first) * group * a.dim;
                *next++ = {row, head, first, last - first, from, to, cut.spans == 1 ? -1 : part};
                part += group * (last - first);
            }
        }
    }
    return work;
}

template <class T>
inline void merge_row(const PagedAttentionArgs& a, int64_t row, const Cut& cut, float* parts) {
    int64_t group = group_of(a), stride = group * cut.num_tokens * part_size(a), end = padded(a.value_dim);
    for (int64_t head = 0; head < a.num_heads; head++) {
        for (int64_t token = 0; token < cut.num_tokens; token++) {
            int64_t m = token * group + head % group;
            float* first = parts + cut.first_part * part_size(a) + head / group * cut.spans * stride + m * part_size(a);
            merge(a, first, stride, cut.spans);
            finish<T>(a, a.query_starts[row] + token, head, first, first[end], first[end + 1]);
        }
    }
}

template <class T>
inline void paged_attention(const PagedAttentionArgs& a) {
    Cut* cuts = static_cast<Cut*>(scratch(1, (a.num_rows + 1) * sizeof(Cut)));
    int64_t num_items = 0, num_parts = 0, work = 0;
    for (int64_t row = 0; row < a.num_rows; row++) {
        Cut& cut = cuts[row] = cut_of(a, row);
        num_items += cut.tiles * cut.spans * a.num_kv_heads;
        cut.first_part = num_parts;
        num_parts += cut.parts;
    }
    Item* items = static_cast<Item*>(scratch(2, (num_items + 1) * sizeof(Item)));
    float* parts = static_cast<float*>(scratch(3, (num_parts * part_size(a) + 1) * sizeof(float)));
    Item* next = items;
    for (int64_t row = 0; row < a.num_rows; row++) work += cut_row(a, row, cuts[row], next);
    // A few microseconds of work are done sooner than shared.
    parallel_for(num_items, work < 65536 ? num_items : 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) attend<T>(a, items[i], items[min64(i + 1, end - 1)], parts);
    });
    if (num_parts > 0) {
        parallel_for(a.num_rows, max64(1, 64 * a.num_rows / num_parts), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++)
                if (cuts[row].parts > 0) merge_row<T>(a, row, cuts[row], parts);
        });
    }
    int64_t used = a.query_starts[a.num_rows], width = a.num_heads * a.value_dim;
    if (used < a.num_tokens) memset(static_cast<T*>(a.out) + used * width, 0, (a.num_tokens - used) * width * sizeof(T));
}

OCTAVO_END

OP(paged_attention) {
    OCTAVO_USE;
    const auto& a = args<PagedAttentionArgs>(raw);
    with_dtype(a.dtype, [&](auto kind) { paged_attention<decltype(kind)>(a); });
}
