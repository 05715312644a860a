// Floats side by side: as many as the level's registers hold, and one alone where it has no vectors.
//
// Loads and stores convert from and to any dtype; `n` elements: the others are 0 and are not touched. Narrow stores round to
// nearest, ties to even.
#pragma once

#include <cmath>

#include "kernel.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(OCTAVO_SCALAR)
#include <arm_neon.h>
#define OCTAVO_NEON
#endif

OCTAVO_BEGIN

inline float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

inline float widen(float x) { return x; }
inline float widen(bf16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }
inline float widen(f16 x) {
    // Exact: the exponent is moved by a product with 2^112, infinities and NaN apart.
    uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, rest = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
    uint32_t bits = rest >= 0x0f800000 ? rest | 0x7f800000 : to_bits(from_bits(rest) * from_bits(0x77800000));
    return from_bits(sign | bits);
}

inline void narrow(float x, float* to) { *to = x; }
inline void narrow(float x, bf16* to) {
    uint32_t bits = to_bits(x);
    bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    to->bits = static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline void narrow(float x, f16* to) {
    uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) {
        to->bits = static_cast<uint16_t>(sign | 0x7e00);
    } else if (rest >= 0x47800000) {
        to->bits = static_cast<uint16_t>(sign | 0x7c00);
    } else if (rest < 0x38800000) {
        // Subnormal: adding 0.5 puts the rounded digits at the end.
        to->bits = static_cast<uint16_t>(sign | (to_bits(from_bits(rest) + 0.5f) - 0x3f000000));
    } else {
        to->bits = static_cast<uint16_t>(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
    }
}

#if defined(__AVX512F__)
struct Floats {
    static constexpr int WIDTH = 16;
    __m512 v;
};
inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
inline Floats broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline Floats load(const bf16* from) {
    __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Floats load(const f16* from) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))}; }
inline Floats load(const float* from, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), from)}; }
inline Floats load(const bf16* from, int64_t n) {
    __m256i bits = _mm256_maskz_loadu_epi16(first_lanes(n), from);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Floats load(const f16* from, int64_t n) { return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), from))}; }
inline __m256i rounded(Floats x) {
    __m512i bits = _mm512_castps_si512(x.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    sum = _mm512_mask_mov_epi32(sum, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16));
}
inline void store(float* to, Floats x) { _mm512_storeu_ps(to, x.v); }
inline void store(bf16* to, Floats x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded(x)); }
inline void store(f16* to, Floats x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline void store(float* to, Floats x, int64_t n) { _mm512_mask_storeu_ps(to, first_lanes(n), x.v); }
inline void store(bf16* to, Floats x, int64_t n) { _mm256_mask_storeu_epi16(to, first_lanes(n), rounded(x)); }
inline void store(f16* to, Floats x, int64_t n) {
    _mm256_mask_storeu_epi16(to, first_lanes(n), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c
inline Floats fused(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats larger(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline float sum(Floats x) { return _mm512_reduce_add_ps(x.v); }
inline float maximum(Floats x) { return _mm512_reduce_max_ps(x.v); }
// Lane i: the sum of x[i].
inline Floats sums(const Floats x[16]) {
    __m512 two[8], four[4], half[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m512 a = x[2 * i].v, b = x[2 * i + 1].v;
        two[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(two[2 * i]), b = _mm512_castps_pd(two[2 * i + 1]);
        four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m512 a = four[2 * i], b = four[2 * i + 1];
        half[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    }
    return {_mm512_add_ps(_mm512_shuffle_f32x4(half[0], half[1], 0x88), _mm512_shuffle_f32x4(half[0], half[1], 0xdd))};
}
inline Floats nearest(Floats x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// x * 2^n for whole n.
inline Floats scaled(Floats x, Floats n) { return {_mm512_scalef_ps(x.v, n.v)}; }
#elif defined(__AVX2__)
struct Floats {
    static constexpr int WIDTH = 8;
    __m256 v;
};
inline __m256i first_lanes(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Floats broadcast(float x) { return {_mm256_set1_ps(x)}; }
inline Floats load(const float* from) { return {_mm256_loadu_ps(from)}; }
inline Floats load(const bf16* from) {
    __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
inline Floats load(const f16* from) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))}; }
inline Floats load(const float* from, int64_t n) { return {_mm256_maskload_ps(from, first_lanes(n))}; }
template <class T>
inline Floats load(const T* from, int64_t n) {
    T whole[8] = {};
    memcpy(whole, from, n * sizeof(T));
    return load(whole);
}
inline void store(float* to, Floats x) { _mm256_storeu_ps(to, x.v); }
inline void store(bf16* to, Floats x) {
    __m256i bits = _mm256_castps_si256(x.v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    sum = _mm256_blendv_epi8(sum, quiet, _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q)));
    sum = _mm256_srli_epi32(sum, 16);
    __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
}
inline void store(f16* to, Floats x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline void store(float* to, Floats x, int64_t n) { _mm256_maskstore_ps(to, first_lanes(n), x.v); }
template <class T>
inline void store(T* to, Floats x, int64_t n) {
    T whole[8];
    store(whole, x);
    memcpy(to, whole, n * sizeof(T));
}
inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Floats fused(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats larger(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Floats smaller(Floats a, Floats b) { return {_mm256_min_ps(a.v, b.v)}; }
inline float sum(Floats x) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float maximum(Floats x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
inline Floats sums(const Floats x[8]) {
    __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(x[0].v, x[1].v), _mm256_hadd_ps(x[2].v, x[3].v));
    __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(x[4].v, x[5].v), _mm256_hadd_ps(x[6].v, x[7].v));
    return {_mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31))};
}
inline Floats nearest(Floats x) { return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Floats scaled(Floats x, Floats n) {
    // In two steps, so that 2^n may be subnormal.
    __m256i whole = _mm256_cvtps_epi32(n.v), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23));
    return {_mm256_mul_ps(_mm256_mul_ps(x.v, first), second)};
}
#elif defined(OCTAVO_NEON)
struct Floats {
    static constexpr int WIDTH = 4;
    float32x4_t v;
};
inline Floats broadcast(float x) { return {vdupq_n_f32(x)}; }
inline Floats load(const float* from) { return {vld1q_f32(from)}; }
inline Floats load(const bf16* from) {
    uint16x4_t bits = vld1_u16(reinterpret_cast<const uint16_t*>(from));
    return {vreinterpretq_f32_u32(vshll_n_u16(bits, 16))};
}
inline Floats load(const f16* from) {
    return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(from))))};
}
template <class T>
inline Floats load(const T* from, int64_t n) {
    T whole[4] = {};
    memcpy(whole, from, n * sizeof(T));
    return load(whole);
}
inline void store(float* to, Floats x) { vst1q_f32(to, x.v); }
inline void store(bf16* to, Floats x) {
    float whole[4];
    vst1q_f32(whole, x.v);
    for (int i = 0; i < 4; i++) narrow(whole[i], to + i);
}
inline void store(f16* to, Floats x) {
    vst1_u16(reinterpret_cast<uint16_t*>(to), vreinterpret_u16_f16(vcvt_f16_f32(x.v)));
}
template <class T>
inline void store(T* to, Floats x, int64_t n) {
    T whole[4];
    store(whole, x);
    memcpy(to, whole, n * sizeof(T));
}
inline Floats operator+(Floats a, Floats b) { return {vaddq_f32(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {vsubq_f32(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {vmulq_f32(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {vdivq_f32(a.v, b.v)}; }
inline Floats fused(Floats a, Floats b, Floats c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline Floats larger(Floats a, Floats b) { return {vmaxq_f32(a.v, b.v)}; }
inline Floats smaller(Floats a, Floats b) { return {vminq_f32(a.v, b.v)}; }
inline float sum(Floats x) { return vaddvq_f32(x.v); }
inline float maximum(Floats x) { return vmaxvq_f32(x.v); }
inline Floats sums(const Floats x[4]) {
    return {vpaddq_f32(vpaddq_f32(x[0].v, x[1].v), vpaddq_f32(x[2].v, x[3].v))};
}
inline Floats nearest(Floats x) { return {vrndnq_f32(x.v)}; }
inline Floats scaled(Floats x, Floats n) {
    int32x4_t whole = vcvtq_s32_f32(n.v), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
    float32x4_t first = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    float32x4_t second = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23));
    return {vmulq_f32(vmulq_f32(x.v, first), second)};
}
#else
struct Floats {
    static constexpr int WIDTH = 1;
    float v;
};
inline Floats broadcast(float x) { return {x}; }
template <class T>
inline Floats load(const T* from) {
    return {widen(*from)};
}
template <class T>
inline Floats load(const T* from, int64_t) {
    return load(from);
}
template <class T>
inline void store(T* to, Floats x) {
    narrow(x.v, to);
}
template <class T>
inline void store(T* to, Floats x, int64_t) {
    store(to, x);
}
inline Floats operator+(Floats a, Floats b) { return {a.v + b.v}; }
inline Floats operator-(Floats a, Floats b) { return {a.v - b.v}; }
inline Floats operator*(Floats a, Floats b) { return {a.v * b.v}; }
inline Floats operator/(Floats a, Floats b) { return {a.v / b.v}; }
inline Floats fused(Floats a, Floats b, Floats c) { return {a.v * b.v + c.v}; }
inline Floats larger(Floats a, Floats b) { return {a.v > b.v ? a.v : b.v}; }
inline Floats smaller(Floats a, Floats b) { return {a.v < b.v ? a.v : b.v}; }
inline float sum(Floats x) { return x.v; }
inline float maximum(Floats x) { return x.v; }
inline Floats sums(const Floats x[1]) { return x[0]; }
inline Floats nearest(Floats x) { return {nearbyintf(x.v)}; }
inline Floats scaled(Floats x, Floats n) { return {ldexpf(x.v, static_cast<int>(n.v))}; }
#endif

// Calls body(first, n) for all vectors of [0, count): n is WIDTH, and less in the last.
template <class Body>
inline void each_vector(int64_t count, const Body& body) {
    for (int64_t i = 0; i < count; i += Floats::WIDTH) body(i, min64(Floats::WIDTH, count - i));
}

// Loads n elements, n <= WIDTH; a whole vector is loaded without a mask.
template <class T>
inline Floats load_part(const T* from, int64_t n) {
    return n == Floats::WIDTH ? load(from) : load(from, n);
}
template <class T>
inline void store_part(T* to, Floats x, int64_t n) {
    if (n == Floats::WIDTH) {
        store(to, x);
    } else {
        store(to, x, n);
    }
}

// e^x within 2 units in the last place; 0 below -104, infinity above 89. NaN stays: of a NaN and a bound, `larger` and
// `smaller` give the second.
inline Floats exponential(Floats x) {
    Floats bounded = smaller(broadcast(89.0f), larger(broadcast(-104.0f), x));
    Floats n = nearest(bounded * broadcast(1.44269504f));
    Floats r = fused(n, broadcast(-0.693359375f), bounded);
    r = fused(n, broadcast(2.12194440e-4f), r);
    Floats p = broadcast(1.9875691500e-4f);
    p = fused(p, r, broadcast(1.3981999507e-3f));
    p = fused(p, r, broadcast(8.3334519073e-3f));
    p = fused(p, r, broadcast(4.1665795894e-2f));
    p = fused(p, r, broadcast(1.6666665459e-1f));
    p = fused(p, r, broadcast(5.0000001201e-1f));
    p = fused(p, r * r, r + broadcast(1.0f));
    return scaled(p, n);
}

// 2^x within 2 units in the last place, for x below 128; 0 below -160. NaN stays.
inline Floats power_of_two(Floats x) {
    Floats bounded = larger(broadcast(-160.0f), x), n = nearest(bounded), r = bounded - n;
    Floats p = broadcast(1.326472e-3f);
    p = fused(p, r, broadcast(9.671513e-3f));
    p = fused(p, r, broadcast(5.5507336e-2f));
    p = fused(p, r, broadcast(0.24022242f));
    p = fused(p, r, broadcast(0.693147f));
    p = fused(p, r, broadcast(1.0f));
    return scaled(p, n);
}

OCTAVO_END
