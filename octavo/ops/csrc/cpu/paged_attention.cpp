// Causal attention over keys and values that lie in pages, decode rows and prompts alike.
// levels: scalar avx2 avx512 neon
//
// Work is cut into items: a tile of a row's tokens, with all G query heads that share a key head, over a span of its keys. An
// item walks its keys in chunks and keeps a running maximum, sum and output (Milakov & Gimelshein 2018). Rows of one token have
// their keys cut into spans of a fixed length, whose parts are merged after: what comes out does not depend on the threads.
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

constexpr int64_t CHUNK = 64, SPAN = 256, TILE_TOKENS = 64;
// Below so many queries, keys are taken as they lie; above, it pays to turn them over.
constexpr int64_t FEW_QUERIES = 8;
constexpr int MOST_ROWS = Floats::WIDTH == 16 ? 6 : 4, MOST_VECTORS = Floats::WIDTH == 16 ? 4 : 2;

struct Item {
    int64_t row, head, first_token, num_tokens, begin, end;
    // Where the item's part lies among those that are merged, -1 if it is the whole.
    int64_t part;
};

inline int64_t padded(int64_t size) { return (size + Floats::WIDTH - 1) / Floats::WIDTH * Floats::WIDTH; }

// c[M][N] += a[M][K] b[K][N] for one tile that fits into registers; `last` lanes of the last vector count.
template <int M, int N, class T>
inline void multiply_tile(const float* a, int64_t a_row, const T* const* b, int64_t column, float* c, int64_t c_row, int64_t depth,
                          int64_t last) {
    Floats sums[M][N];
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) sums[m][n] = load(c + m * c_row + n * Floats::WIDTH);
    for (int64_t k = 0; k < depth; k++) {
        Floats values[N];
        for (int n = 0; n < N - 1; n++) values[n] = load(b[k] + column + n * Floats::WIDTH);
        values[N - 1] = load_part(b[k] + column + (N - 1) * Floats::WIDTH, last);
        for (int m = 0; m < M; m++) {
            Floats factor = broadcast(a[m * a_row + k]);
            for (int n = 0; n < N; n++) sums[m][n] = fused(factor, values[n], sums[m][n]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) store(c + m * c_row + n * Floats::WIDTH, sums[m][n]);
}

template <int N, class T>
inline void multiply_columns(const float* a, int64_t a_row, const T* const* b, int64_t column, float* c, int64_t c_row,
                             int64_t rows, int64_t depth, int64_t last) {
    int64_t m = 0;
    for (; m + MOST_ROWS <= rows; m += MOST_ROWS)
        multiply_tile<MOST_ROWS, N>(a + m * a_row, a_row, b, column, c + m * c_row, c_row, depth, last);
    for (; m + 2 <= rows; m += 2) multiply_tile<2, N>(a + m * a_row, a_row, b, column, c + m * c_row, c_row, depth, last);
    if (m < rows) multiply_tile<1, N>(a + m * a_row, a_row, b, column, c + m * c_row, c_row, depth, last);
}

// c[rows][columns] += a[rows][depth] times the rows that b points at. c has room for whole vectors.
template <class T>
inline void multiply(const float* a, int64_t a_row, const T* const* b, float* c, int64_t c_row, int64_t rows, int64_t depth,
                     int64_t columns) {
    constexpr int64_t WIDE = MOST_VECTORS * Floats::WIDTH;
    int64_t column = 0;
    for (; column + WIDE <= columns; column += WIDE)
        multiply_columns<MOST_VECTORS>(a, a_row, b, column, c + column, c_row, rows, depth, Floats::WIDTH);
    for (; column < columns; column += Floats::WIDTH)
        multiply_columns<1>(a, a_row, b, column, c + column, c_row, rows, depth, min64(Floats::WIDTH, columns - column));
}

// scores[M][CHUNK] of M <= FEW_QUERIES queries and the keys as they lie.
template <class T>
inline void dot_scores(const float* q, int64_t q_row, const T* const* keys, float* scores, int64_t rows, int64_t count,
                       int64_t dim) {
    for (int64_t n = 0; n < count; n++) {
        for (int64_t m = 0; m < rows; m += 2) {
            const float *one = q + m * q_row, *other = m + 1 < rows ? one + q_row : one;
            Floats a = broadcast(0.0f), b = a;
            each_vector(dim, [&](int64_t i, int64_t size) {
                Floats key = load_part(keys[n] + i, size);
                a = fused(load(one + i), key, a);
                b = fused(load(other + i), key, b);
            });
            scores[m * CHUNK + n] = sum(a);
            if (m + 1 < rows) scores[(m + 1) * CHUNK + n] = sum(b);
        }
    }
}

// What an item computes with; all of it in one thread's scratch.
struct Buffers {
    float *q, *scores, *turned, *out, *peaks, *sums;
};

inline Buffers buffers_of(int64_t queries, int64_t dim, int64_t value_dim) {
    int64_t sizes[] = {queries * padded(dim), queries * CHUNK, dim * CHUNK, queries * padded(value_dim), queries, queries};
    int64_t total = 0;
    for (int64_t& size : sizes) total += size = (size + 15) / 16 * 16;
    float* at = static_cast<float*>(scratch(0, total * sizeof(float)));
    float* places[6];
    for (int i = 0; i < 6; i++) {
        places[i] = at;
        at += sizes[i];
    }
    return {places[0], places[1], places[2], places[3], places[4], places[5]};
}

// From raw scores to weights exp(score - peak) of one query; what it has so far shrinks if the peak rises.
inline void weigh(const PagedAttentionArgs& a, float* scores, int64_t count, int64_t first, int64_t position, int64_t head,
                  float* out, float* peak, float* total) {
    if (a.softcap != 0) {
        Floats cap = broadcast(static_cast<float>(a.softcap)), twice = broadcast(static_cast<float>(2 / a.softcap));
        Floats one = broadcast(1.0f), two = broadcast(2.0f);
        each_vector(CHUNK, [&](int64_t i, int64_t) {
            store(scores + i, cap * (one - two / (exponential(load(scores + i) * twice) + one)));
        });
    }
    if (a.slopes != nullptr)
        for (int64_t n = 0; n < count; n++) scores[n] -= a.slopes[head] * static_cast<float>(position - first - n);
    // Keys [from, to) of the chunk are seen.
    int64_t from = a.window == 0 ? 0 : min64(CHUNK, max64(0, position + 1 - a.window - first));
    int64_t to = max64(0, min64(count, position + 1 - first));
    for (int64_t n = 0; n < from; n++) scores[n] = -INFINITY;
    for (int64_t n = to; n < CHUNK; n++) scores[n] = -INFINITY;
    Floats most = broadcast(-INFINITY);
    each_vector(CHUNK, [&](int64_t i, int64_t) { most = larger(most, load(scores + i)); });
    float now = maximum(most);
    if (!(now > *peak)) now = *peak;
    if (now == -INFINITY && from >= to) {
        for (int64_t n = 0; n < CHUNK; n++) scores[n] = 0.0f;
        return;
    }
    Floats weights = broadcast(0.0f), shift = broadcast(now);
    each_vector(CHUNK, [&](int64_t i, int64_t) {
        Floats weight = exponential(load(scores + i) - shift);
        store(scores + i, weight);
        weights = weights + weight;
    });
    if (now != *peak) {
        float shrink = *peak == -INFINITY ? 0.0f : expf(*peak - now);
        *total *= shrink;
        each_vector(a.value_dim, [&](int64_t i, int64_t) { store(out + i, load(out + i) * broadcast(shrink)); });
        *peak = now;
    }
    *total += sum(weights);
}

template <class T>
inline void walk(const PagedAttentionArgs& a, const Item& item, const Buffers& at, int64_t queries, int64_t position) {
    int64_t group = a.num_heads / a.num_kv_heads, q_row = padded(a.dim), out_row = padded(a.value_dim);
    const int32_t* pages = a.table + item.row * a.table_row;
    const T *key_base = static_cast<const T*>(a.key_pages) + item.head * a.key_head;
    const T *value_base = static_cast<const T*>(a.value_pages) + item.head * a.value_head;
    const T *keys[CHUNK], *values[CHUNK];
    int64_t shared = a.span_table == nullptr || a.window != 0 ? 0 : a.span_skips[item.row];
    for (int64_t first = item.begin; first < item.end; first += CHUNK) {
        int64_t count = min64(CHUNK, item.end - first);
        for (int64_t n = 0; n < count; n++) {
            int64_t number = (first + n) / a.block, place = (first + n) % a.block;
            int64_t page = first + n < shared ? a.span_table[number * a.span_column] : pages[number * a.table_column];
            keys[n] = key_base + page * a.key_page + place * a.key_place;
            values[n] = value_base + page * a.value_page + place * a.value_place;
        }
        if (queries < FEW_QUERIES) {
            dot_scores(at.q, q_row, keys, at.scores, queries, count, a.dim);
        } else {
            const float* turned[1024];
            for (int64_t i = 0; i < a.dim; i++) turned[i] = at.turned + i * CHUNK;
            for (int64_t n = 0; n < count; n++)
                for (int64_t i = 0; i < a.dim; i++) at.turned[i * CHUNK + n] = widen(keys[n][i]);
            for (int64_t n = count; n < CHUNK; n++)
                for (int64_t i = 0; i < a.dim; i++) at.turned[i * CHUNK + n] = 0.0f;
            memset(at.scores, 0, queries * CHUNK * sizeof(float));
            multiply(at.q, q_row, turned, at.scores, CHUNK, queries, a.dim, CHUNK);
        }
        for (int64_t m = 0; m < queries; m++)
            weigh(a, at.scores + m * CHUNK, count, first, position + m / group, item.head * group + m % group, at.out + m * out_row,
                  at.peaks + m, at.sums + m);
        multiply(at.scores, CHUNK, values, at.out, out_row, queries, count, a.value_dim);
    }
}

// Writes a query's answer; the sink, if there is one, takes its share without giving a value.
template <class T>
inline void finish(const PagedAttentionArgs& a, int64_t token, int64_t head, const float* sums, float peak, float total) {
    T* out = static_cast<T*>(a.out) + (token * a.num_heads + head) * a.value_dim;
    float shrink = 1.0f;
    if (a.sinks != nullptr) {
        float sink = 0.0f;
        with_dtype(a.sinks_dtype, [&](auto kind) { sink = widen(static_cast<const decltype(kind)*>(a.sinks)[head]); });
        float top = sink > peak ? sink : peak;
        shrink = expf(peak - top);
        total = total * shrink + expf(sink - top);
    }
    Floats scale = broadcast(total == 0.0f ? 0.0f : shrink / total);
    each_vector(a.value_dim, [&](int64_t i, int64_t n) { store_part(out + i, load(sums + i) * scale, n); });
}

// A part: output [padded(E)], peak, total.
inline int64_t part_size(const PagedAttentionArgs& a) { return padded(a.value_dim) + 16; }

template <class T>
inline void attend(const PagedAttentionArgs& a, const Item& item, float* parts) {
    int64_t group = a.num_heads / a.num_kv_heads, queries = group * item.num_tokens, out_row = padded(a.value_dim);
    Buffers at = buffers_of(queries, a.dim, a.value_dim);
    int64_t start = a.query_starts[item.row], position = a.lengths[item.row] - (a.query_starts[item.row + 1] - start);
    const T* q = static_cast<const T*>(a.q) + (start + item.first_token) * a.q_token + item.head * group * a.q_head;
    Floats scale = broadcast(static_cast<float>(a.scale));
    for (int64_t m = 0; m < queries; m++) {
        const T* from = q + m / group * a.q_token + m % group * a.q_head;
        float* to = at.q + m * padded(a.dim);
        each_vector(a.dim, [&](int64_t i, int64_t n) { store(to + i, load_part(from + i, n) * scale); });
        at.peaks[m] = -INFINITY;
        at.sums[m] = 0.0f;
    }
    memset(at.out, 0, queries * out_row * sizeof(float));
    walk<T>(a, item, at, queries, position + item.first_token);
    for (int64_t m = 0; m < queries; m++) {
        int64_t head = item.head * group + m % group;
        if (item.part < 0) {
            finish<T>(a, start + item.first_token + m / group, head, at.out + m * out_row, at.peaks[m], at.sums[m]);
            continue;
        }
        float* part = parts + (item.part * group + m) * part_size(a);
        memcpy(part, at.out + m * out_row, out_row * sizeof(float));
        part[out_row] = at.peaks[m];
        part[out_row + 1] = at.sums[m];
    }
}

// Merges `count` parts of one query by their peaks and totals into the first.
inline void merge(const PagedAttentionArgs& a, float* first, int64_t stride, int64_t count) {
    int64_t row = padded(a.value_dim);
    float peak = first[row];
    for (int64_t i = 1; i < count; i++)
        if (first[i * stride + row] > peak) peak = first[i * stride + row];
    float total = 0.0f;
    for (int64_t i = 0; i < count; i++) {
        float* part = first + i * stride;
        float shrink = expf(part[row] - peak);
        total += part[row + 1] * shrink;
        each_vector(a.value_dim, [&](int64_t d, int64_t) {
            Floats scaled_part = load(part + d) * broadcast(shrink);
            store(first + d, i == 0 ? scaled_part : load(first + d) + scaled_part);
        });
    }
    first[row] = peak;
    first[row + 1] = total;
}

// How a row is cut: tiles of tokens, and spans of keys if it is one token over many.
struct Cut {
    int64_t num_tokens, tiles, begin, spans;
};

inline Cut cut_of(const PagedAttentionArgs& a, int64_t row) {
    int64_t tokens = a.query_starts[row + 1] - a.query_starts[row], length = a.lengths[row];
    int64_t begin = a.window == 0 ? 0 : max64(0, length - tokens + 1 - a.window);
    int64_t spans = tokens == 1 ? max64(1, (length - begin + SPAN - 1) / SPAN) : 1;
    return {tokens, (tokens + TILE_TOKENS - 1) / TILE_TOKENS, begin, spans};
}

template <class T>
inline void paged_attention(const PagedAttentionArgs& a) {
    int64_t num_items = 0, num_parts = 0;
    for (int64_t row = 0; row < a.num_rows; row++) {
        Cut cut = cut_of(a, row);
        num_items += cut.tiles * cut.spans * a.num_kv_heads;
        num_parts += cut.spans > 1 ? cut.spans * a.num_kv_heads : 0;
    }
    int64_t group = a.num_heads / a.num_kv_heads;
    Item* items = static_cast<Item*>(scratch(2, (num_items + 1) * sizeof(Item)));
    float* parts = static_cast<float*>(scratch(3, (num_parts * group * part_size(a) + 1) * sizeof(float)));
    int64_t made = 0, part = 0, work = 0;
    for (int64_t row = 0; row < a.num_rows; row++) {
        Cut cut = cut_of(a, row);
        int64_t cached = a.lengths[row] - cut.num_tokens;
        for (int64_t head = 0; head < a.num_kv_heads; head++) {
            // The last tiles have the most to do and go first.
            for (int64_t tile = cut.tiles - 1; tile >= 0; tile--) {
                int64_t first = tile * TILE_TOKENS, last = min64(cut.num_tokens, first + TILE_TOKENS);
                int64_t begin = a.window == 0 ? 0 : max64(0, cached + first + 1 - a.window);
                for (int64_t span = 0; span < cut.spans; span++) {
                    int64_t from = begin + span * SPAN, to = cut.spans == 1 ? cached + last : min64(cached + last, from + SPAN);
                    work += (to - from) * (last - first) * group * a.dim;
                    items[made++] = {row, head, first, last - first, from, to, cut.spans == 1 ? -1 : part++};
                }
            }
        }
    }
    // A few microseconds of work are done sooner than shared.
    parallel_for(made, work < 65536 ? made : 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) attend<T>(a, items[i], parts);
    });
    for (int64_t row = 0, done = 0; row < a.num_rows && done < num_parts; row++) {
        Cut cut = cut_of(a, row);
        if (cut.spans == 1) continue;
        int64_t stride = group * part_size(a), row_end = padded(a.value_dim);
        for (int64_t head = 0; head < a.num_heads; head++) {
            float* first = parts + (done + head / group * cut.spans) * stride + head % group * part_size(a);
            merge(a, first, stride, cut.spans);
            finish<T>(a, a.query_starts[row], head, first, first[row_end], first[row_end + 1]);
        }
        done += cut.spans * a.num_kv_heads;
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
