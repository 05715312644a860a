// Few rows x [rows, ins] times a plain weight [outs, ins] as it lies in memory: out [rows, outs], sums in float32.
//
// A weight is read once, some outputs at a time, whatever the rows; many rows are the tensor library's.
// levels: scalar avx2 avx512 bf16 neon
#include "vector.h"

OCTAVO_BEGIN
namespace {

struct ProductArgs {
    const void* x;
    const void* weight;
    const void* bias;
    void* out;  // [rows, outs]
    int64_t num_rows, num_ins, num_outs, x_stride, dtype, out_dtype;
};

// Rows that are multiplied at a time.
constexpr int MOST_ROWS = 8;
// Outputs that a thread takes at a time, at least, and whose weights it keeps in its cache for one row after another.
constexpr int64_t GRAIN = 16, NEAR = 24;

// Asks for the weights of the next R outputs while these are multiplied, into the second cache: the first waits for too few
// places of memory at a time to keep up.
template <int R, class T>
inline void fetch_next(const T* weight, int64_t ins) {
#pragma GCC unroll 16
    for (int r = R; Floats::WIDTH > 1 && r < 2 * R; r++) __builtin_prefetch(weight + r * ins, 0, 2);
}

// The sums of R outputs and M rows of x, in float32.
template <int M, int R, class T>
inline void add_up(const T* weight, const float* x, int64_t stride, int64_t ins, float out[R][M]) {
    Floats sums[R][M];
    for (auto& of_output : sums) {
        for (auto& one : of_output) one = broadcast(0.0f);
    }
    each_vector(ins, [&](int64_t i, int64_t n) {
        fetch_next<R>(weight + i, ins);
        Floats w[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) w[r] = load_part(weight + r * ins + i, n);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const Floats v = load_part(x + m * stride + i, n);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) sums[r][m] = fused(w[r], v, sums[r][m]);
        }
    });
    for (int r = 0; r < R; r++) {
        for (int m = 0; m < M; m++) out[r][m] = sum(sums[r][m]);
    }
}

#if defined(__AVX512BF16__)
// The sums of four vectors.
inline __m128 sums_of_four(const __m512* v) {
    const auto mixed = [](__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); };
    const __m512d first = _mm512_castps_pd(mixed(v[0], v[1])), second = _mm512_castps_pd(mixed(v[2], v[3]));
    const __m512 all = _mm512_add_ps(
        _mm512_castpd_ps(_mm512_unpacklo_pd(first, second)), _mm512_castpd_ps(_mm512_unpackhi_pd(first, second)));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Both factors narrow: pairs of products are added to a sum in one step.
template <int M, int R>
inline void add_up(const bf16* weight, const bf16* x, int64_t stride, int64_t ins, float out[R][M]) {
    constexpr int COUNT = (R * M + 3) / 4 * 4;
    __m512 sums[COUNT];
    for (auto& one : sums) one = _mm512_setzero_ps();
    const auto add = [&](const auto& load_pairs) {
        __m512bh w[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) w[r] = load_pairs(weight + r * ins);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const __m512bh v = load_pairs(x + m * stride);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) sums[r * M + m] = _mm512_dpbf16_ps(sums[r * M + m], w[r], v);
        }
    };
    int64_t i = 0;
    for (; i + 32 <= ins; i += 32) {
        fetch_next<R>(weight + i, ins);
        add([&](const bf16* from) { return (__m512bh)_mm512_loadu_si512(from + i); });
    }
    const auto mask = static_cast<__mmask32>((1u << (ins - i)) - 1);
    if (i < ins) add([&](const bf16* from) { return (__m512bh)_mm512_maskz_loadu_epi16(mask, from + i); });
    alignas(16) float found[COUNT];
#pragma GCC unroll 16
    for (int k = 0; k < COUNT; k += 4) _mm_store_ps(found + k, sums_of_four(sums + k));
    memcpy(out, found, sizeof(float) * R * M);
}
#endif

// x as it is multiplied: float32, or bfloat16 where the level adds up products of it. sums: kept in registers.
template <class T>
struct Factor {
    using Type = float;
    static constexpr int sums = Floats::WIDTH == 16 ? 16 : 8;
};
#if defined(__AVX512BF16__)
template <>
struct Factor<bf16> {
    using Type = bf16;
    static constexpr int sums = 24;
};
#endif

// x as it is multiplied, and how far its rows are apart.
template <class T>
struct Input {
    const typename Factor<T>::Type* first;
    int64_t stride;
};

template <class T, int M, int R>
void outputs(const ProductArgs& a, Input<T> x, int64_t row, int64_t begin, int64_t end) {
    const auto* weight = static_cast<const T*>(a.weight);
    for (; begin + R <= end; begin += R) {
        float found[R][M];
        add_up<M, R>(weight + begin * a.num_ins, x.first + row * x.stride, x.stride, a.num_ins, found);
        for (int r = 0; r < R; r++) {
            const float bias = a.bias == nullptr ? 0.0f : widen(static_cast<const T*>(a.bias)[begin + r]);
            for (int m = 0; m < M; m++) {
                with_dtype(a.out_dtype, [&](auto zero) {
                    auto* out = static_cast<decltype(zero)*>(a.out);
                    narrow(found[r][m] + bias, out + (row + m) * a.num_outs + begin + r);
                });
            }
        }
    }
    if constexpr (R > 1) outputs<T, M, 1>(a, x, row, begin, end);
}

// All rows from `row` on, M at a time, then fewer.
template <class T, int M>
void rows(const ProductArgs& a, Input<T> x, int64_t row, int64_t begin, int64_t end) {
    for (; row + M <= a.num_rows; row += M) outputs<T, M, M == 1 ? 4 : Factor<T>::sums / M>(a, x, row, begin, end);
    if constexpr (M > 1) rows<T, M / 2>(a, x, row, begin, end);
}

template <class T>
Input<T> input(const ProductArgs& a) {
    if constexpr (sizeof(T) == sizeof(*Input<T>::first)) return {static_cast<const T*>(a.x), a.x_stride};
    else {
        auto* x = static_cast<float*>(scratch(0, static_cast<size_t>(a.num_rows * a.num_ins) * sizeof(float)));
        for (int64_t i = 0; i < a.num_rows; i++) {
            const T* from = static_cast<const T*>(a.x) + i * a.x_stride;
            for (int64_t k = 0; k < a.num_ins; k++) x[i * a.num_ins + k] = widen(from[k]);
        }
        return {x, a.num_ins};
    }
}

template <class T>
void multiply(const ProductArgs& a) {
    const Input<T> x = input<T>(a);
    parallel_for(a.num_outs, GRAIN, [&](int64_t begin, int64_t end) {
        for (; begin < end; begin += NEAR) rows<T, MOST_ROWS>(a, x, 0, begin, min64(begin + NEAR, end));
    });
}

}  // namespace
OCTAVO_END

OP(product) {
    OCTAVO_USE;
    const auto& a = args<ProductArgs>(raw);
    with_dtype(a.dtype, [&](auto zero) { multiply<decltype(zero)>(a); });
}
