// Root-mean-square norm, with or without the residual sum before it.
// levels: scalar avx2 avx512 neon
#include "vector.h"

OCTAVO_BEGIN

struct RmsNormArgs {
    const void* x;
    void* residual;
    const void* weight;
    void* out;
    int64_t dtype, weight_dtype, num_rows, num_heads, size;
    // Of a row's token and of its head; out lies without gaps.
    int64_t x_token, x_head, residual_token;
    double eps;
};

template <class T, class W>
inline void rms_norm_row(const T* x, T* residual, const W* weight, T* out, int64_t size, float eps) {
    Floats squares = broadcast(0.0f);
    each_vector(size, [&](int64_t i, int64_t n) {
        Floats v = load_part(x + i, n);
        if (residual != nullptr) {
            store_part(residual + i, v + load_part(residual + i, n), n);
            // What is normalized is the stream as it is kept, rounded.
            v = load_part(residual + i, n);
        }
        squares = fused(v, v, squares);
    });
    Floats scale = broadcast(1.0f / sqrtf(sum(squares) / static_cast<float>(size) + eps));
    const T* kept = residual != nullptr ? residual : x;
    each_vector(size, [&](int64_t i, int64_t n) {
        store_part(out + i, load_part(kept + i, n) * scale * load_part(weight + i, n), n);
    });
}

OCTAVO_END

OP(rms_norm) {
    OCTAVO_USE;
    const auto& a = args<RmsNormArgs>(raw);
    int64_t grain = max64(1, 16384 / a.size);
    with_dtype(a.dtype, [&](auto kind) {
        using T = decltype(kind);
        with_dtype(a.weight_dtype, [&](auto weight_kind) {
            using W = decltype(weight_kind);
            parallel_for(a.num_rows, grain, [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; row++) {
                    int64_t token = row / a.num_heads, head = row % a.num_heads;
                    auto* residual = static_cast<T*>(a.residual);
                    rms_norm_row(static_cast<const T*>(a.x) + token * a.x_token + head * a.x_head,
                                 residual == nullptr ? nullptr : residual + token * a.residual_token,
                                 static_cast<const W*>(a.weight), static_cast<T*>(a.out) + row * a.size, a.size,
                                 static_cast<float>(a.eps));
                }
            });
        });
    });
}
