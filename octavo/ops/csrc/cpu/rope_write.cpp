// What attention does before it attends: normalize heads, rotate them, write keys and values into pages.
// levels: scalar avx2 avx512 neon
#include "vector.h"

OCTAVO_BEGIN

struct RopeWriteArgs {
    // q is overwritten; k and v only read.
    void* q;
    const void *k, *v;
    // Of the norms, both or neither.
    const void *q_weight, *k_weight;
    const int64_t* positions;
    const float* table;
    void *key_pages, *value_pages;
    const int64_t *pages, *offsets;
    int64_t dtype, weight_dtype, num_tokens, num_heads, num_kv_heads, dim, rotated, interleaved;
    int64_t q_token, q_head, k_token, k_head, v_token, v_head, pages_stride, offsets_stride;
    int64_t key_page, key_head, key_place, value_page, value_head, value_place;
    double eps;
};

constexpr int64_t MOST_DIM = 1024;

template <class T, class W>
inline void norm_head(const T* from, const W* weight, float* to, int64_t dim, float eps) {
    Floats squares = broadcast(0.0f);
    each_vector(dim, [&](int64_t i, int64_t n) {
        Floats x = load_part(from + i, n);
        store_part(to + i, x, n);
        squares = fused(x, x, squares);
    });
    if (weight == nullptr) return;
    Floats scale = broadcast(1.0f / sqrtf(sum(squares) / static_cast<float>(dim) + eps));
    each_vector(dim, [&](int64_t i, int64_t n) { store_part(to + i, load_part(to + i, n) * scale * load_part(weight + i, n), n); });
}

// angles: cosines of the R / 2 pairs, then their sines.
inline void rotate(float* x, const float* angles, int64_t rotated, bool interleaved) {
    int64_t half = rotated / 2;
    const float* sines = angles + half;
    if (interleaved) {
        for (int64_t i = 0; i < half; i++) {
            float first = x[2 * i], second = x[2 * i + 1];
            x[2 * i] = first * angles[i] - second * sines[i];
            x[2 * i + 1] = second * angles[i] + first * sines[i];
        }
        return;
    }
    each_vector(half, [&](int64_t i, int64_t n) {
        Floats first = load_part(x + i, n), second = load_part(x + half + i, n);
        Floats cosine = load_part(angles + i, n), sine = load_part(sines + i, n);
        store_part(x + i, first * cosine - second * sine, n);
        store_part(x + half + i, fused(second, cosine, first * sine), n);
    });
}

template <class T, class W>
inline void prepare_head(const RopeWriteArgs& a, const T* from, const void* weight, T* to, int64_t token) {
    alignas(64) float x[MOST_DIM];
    norm_head(from, static_cast<const W*>(weight), x, a.dim, static_cast<float>(a.eps));
    rotate(x, a.table + a.positions[token] * a.rotated, a.rotated, a.interleaved != 0);
    each_vector(a.dim, [&](int64_t i, int64_t n) { store_part(to + i, load_part(x + i, n), n); });
}

template <class T, class W>
inline void rope_write_token(const RopeWriteArgs& a, int64_t token) {
    T* q = static_cast<T*>(a.q) + token * a.q_token;
    for (int64_t head = 0; head < a.num_heads; head++)
        prepare_head<T, W>(a, q + head * a.q_head, a.q_weight, q + head * a.q_head, token);
    int64_t page = a.pages[token * a.pages_stride], place = a.offsets[token * a.offsets_stride];
    for (int64_t head = 0; head < a.num_kv_heads; head++) {
        const T* k = static_cast<const T*>(a.k) + token * a.k_token + head * a.k_head;
        const T* v = static_cast<const T*>(a.v) + token * a.v_token + head * a.v_head;
        T* key = static_cast<T*>(a.key_pages) + page * a.key_page + head * a.key_head + place * a.key_place;
        T* value = static_cast<T*>(a.value_pages) + page * a.value_page + head * a.value_head + place * a.value_place;
        prepare_head<T, W>(a, k, a.k_weight, key, token);
        memcpy(value, v, a.dim * sizeof(T));
    }
}

struct PlaneWriteArgs {
    const char* x;
    char* plane;
    const int64_t *pages, *offsets;
    // Strides in bytes, and bytes of a head.
    int64_t num_tokens, num_heads, bytes, x_token, x_head, page, head, place, pages_stride, offsets_stride;
};

OCTAVO_END

OP(rope_write) {
    OCTAVO_USE;
    const auto& a = args<RopeWriteArgs>(raw);
    int64_t grain = max64(1, 8192 / ((a.num_heads + 2 * a.num_kv_heads) * a.dim));
    with_dtype(a.dtype, [&](auto kind) {
        using T = decltype(kind);
        with_dtype(a.weight_dtype, [&](auto weight_kind) {
            using W = decltype(weight_kind);
            parallel_for(a.num_tokens, grain, [&](int64_t begin, int64_t end) {
                for (int64_t token = begin; token < end; token++) rope_write_token<T, W>(a, token);
            });
        });
    });
}

OP(plane_write) {
    OCTAVO_USE;
    const auto& a = args<PlaneWriteArgs>(raw);
    parallel_for(a.num_tokens, max64(1, 32768 / (a.num_heads * a.bytes)), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; token++) {
            char* to = a.plane + a.pages[token * a.pages_stride] * a.page + a.offsets[token * a.offsets_stride] * a.place;
            for (int64_t head = 0; head < a.num_heads; head++)
                memcpy(to + head * a.head, a.x + token * a.x_token + head * a.x_head, a.bytes);
        }
    });
}
