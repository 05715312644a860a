// Root-mean-square norm and layer norm, with or without the residual sum before.
// levels: scalar avx2 avx512 neon
#include "vector.h"

OCTAVO_BEGIN

struct NormArgs {
    const void* x;
    void* residual;
    // Null: ones, and nothing.
    const void *weight, *bias;
    void* out;
    int64_t dtype, weight_dtype, num_rows, num_heads, size;
    // Of a row's token and of its head; out lies without gaps.
    int64_t x_token, x_head, residual_token, weight_head, bias_head;
    // Whether the mean is taken off first, as a layer norm does.
    int64_t centered;
    double eps;
};

template <class T, class W>
inline void norm_row(const T* x, T* residual, const W* weight, const W* bias, T* out, int64_t size, bool centered, float eps) {
    Floats total = broadcast(0.0f), squares = total;
    each_vector(size, [&](int64_t i, int64_t n) {
        Floats v = load_part(x + i, n);
        if (residual != nullptr) {
            store_part(residual + i, v + load_part(residual + i, n), n);
            // What is normalized is the stream as it is kept, rounded.
            v = load_part(residual + i, n);
        }
        total = total + v;
        squares = fused(v, v, squares);
    });
    const T* kept = residual != nullptr ? residual : x;
    float mean = 0.0f, square = sum(squares);
    if (centered) {
        // Not the mean of squares less the square of the mean: that would lose digits.
        mean = sum(total) / static_cast<float>(size);
        int64_t whole = size - size % Floats::WIDTH;
        squares = broadcast(0.0f);
        for (int64_t i = 0; i < whole; i += Floats::WIDTH) {
            Floats v = load(kept + i) - broadcast(mean);
            squares = fused(v, v, squares);
        }
        square = sum(squares);
        for (int64_t i = whole; i < size; i++) square += (widen(kept[i]) - mean) * (widen(kept[i]) - mean);
    }
    Floats scale = broadcast(1.0f / sqrtf(square / static_cast<float>(size) + eps)), shift = broadcast(mean);
    each_vector(size, [&](int64_t i, int64_t n) {
        Floats y = (load_part(kept + i, n) - shift) * scale;
        if (weight != nullptr) y = y * load_part(weight + i, n);
        if (bias != nullptr) y = y + load_part(bias + i, n);
        store_part(out + i, y, n);
    });
}

template <class T, class W>
inline void norm_rows(const NormArgs& a, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        int64_t token = row / a.num_heads, head = row % a.num_heads;
        auto* residual = static_cast<T*>(a.residual);
        auto *weight = static_cast<const W*>(a.weight), *bias = static_cast<const W*>(a.bias);
        norm_row(static_cast<const T*>(a.x) + token * a.x_token + head * a.x_head,
                 residual == nullptr ? nullptr : residual + token * a.residual_token,
                 weight == nullptr ? nullptr : weight + head * a.weight_head, bias == nullptr ? nullptr : bias + head * a.bias_head,
                 static_cast<T*>(a.out) + row * a.size, a.size, a.centered != 0, static_cast<float>(a.eps));
    }
}

OCTAVO_END

OP(norm) {
    OCTAVO_USE;
    const auto& a = args<NormArgs>(raw);
    with_dtype(a.dtype, [&](auto kind) {
        with_dtype(a.weight_dtype, [&](auto weight_kind) {
            parallel_for(a.num_rows, max64(1, 16384 / a.size), [&](int64_t begin, int64_t end) {
                norm_rows<decltype(kind), decltype(weight_kind)>(a, begin, end);
            });
        });
    });
}
