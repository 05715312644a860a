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

// Rows that are multiplied at a time, and sums that are kept in registers.
constexpr int MOST_ROWS = 8;
constexpr int SUMS = Floats::WIDTH == 16 ? 16 : 8;
// Outputs that a thread takes at a time, at least.
constexpr int64_t GRAIN = 16;

// The sums of R outputs and M rows of x, x [M, ins] in float32.
template <int M, int R, class T>
inline void add_up(const T* weight, const float* x, int64_t ins, float out[R][M]) {
    Floats sums[R][M];
    for (auto& of_output : sums) {
        for (auto& one : of_output) one = broadcast(0.0f);
    }
    each_vector(ins, [&](int64_t i, int64_t n) {
        Floats w[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) w[r] = load_part(weight + r * ins + i, n);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const Floats v = load_part(x + m * ins + i, n);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) sums[r][m] = fused(w[r], v, sums[r][m]);
        }
    });
    for (int r = 0; r < R; r++) {
        for (int m = 0; m < M; m++) out[r][m] = sum(sums[r][m]);
    }
}

#if defined(__AVX512BF16__)
// Both factors narrow: pairs of products are added to a sum in one step.
template <int M, int R>
inline void add_up(const bf16* weight, const bf16* x, int64_t ins, float out[R][M]) {
    __m512 sums[R][M];
    for (auto& of_output : sums) {
        for (auto& one : of_output) one = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < ins; i += 32) {
        const auto mask = static_cast<__mmask32>(ins - i < 32 ? (1u << (ins - i)) - 1 : ~0u);
        __m512bh w[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) w[r] = (__m512bh)_mm512_maskz_loadu_epi16(mask, weight + r * ins + i);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const auto v = (__m512bh)_mm512_maskz_loadu_epi16(mask, x + m * ins + i);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) sums[r][m] = _mm512_dpbf16_ps(sums[r][m], w[r], v);
        }
    }
    for (int r = 0; r < R; r++) {
        for (int m = 0; m < M; m++) out[r][m] = _mm512_reduce_add_ps(sums[r][m]);
    }
}
#endif

// x as it is multiplied: float32, or bfloat16 where the level adds up products of it.
template <class T>
struct Factor {
    using Type = float;
};
#if defined(__AVX512BF16__)
template <>
struct Factor<bf16> {
    using Type = bf16;
};
#endif

template <class T, int M, int R>
void outputs(const ProductArgs& a, const typename Factor<T>::Type* x, int64_t row, int64_t begin, int64_t end) {
    const auto* weight = static_cast<const T*>(a.weight);
    for (; begin + R <= end; begin += R) {
        float found[R][M];
        add_up<M, R>(weight + begin * a.num_ins, x + row * a.num_ins, a.num_ins, found);
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
void rows(const ProductArgs& a, const typename Factor<T>::Type* x, int64_t row, int64_t begin, int64_t end) {
    for (; row + M <= a.num_rows; row += M) outputs<T, M, M == 1 ? 4 : SUMS / M>(a, x, row, begin, end);
    if constexpr (M > 1) rows<T, M / 2>(a, x, row, begin, end);
}

template <class T>
void multiply(const ProductArgs& a) {
    using Type = typename Factor<T>::Type;
    auto* x = static_cast<Type*>(scratch(0, static_cast<size_t>(a.num_rows * a.num_ins) * sizeof(Type)));
    for (int64_t i = 0; i < a.num_rows; i++) {
        const T* from = static_cast<const T*>(a.x) + i * a.x_stride;
        for (int64_t k = 0; k < a.num_ins; k++) narrow(widen(from[k]), x + i * a.num_ins + k);
    }
    parallel_for(a.num_outs, GRAIN, [&](int64_t begin, int64_t end) { rows<T, MOST_ROWS>(a, x, 0, begin, end); });
}

}  // namespace
OCTAVO_END

OP(product) {
    OCTAVO_USE;
    const auto& a = args<ProductArgs>(raw);
    with_dtype(a.dtype, [&](auto zero) { multiply<decltype(zero)>(a); });
}
