// Sixteen numbers side by side, for products: one for each of sixteen outputs. They lie in as many registers as the level
// takes for them; the compiler's own vectors do most, and by hand is only what it cannot say.
#pragma once

#include "vector.h"

OCTAVO_BEGIN

constexpr int LANES = 16;
#if defined(__AVX512BW__)
constexpr int PARTS = 1;
#elif defined(__AVX2__)
constexpr int PARTS = 2;
#else
constexpr int PARTS = 4;
#endif
typedef float FloatPart __attribute__((vector_size(64 / PARTS)));
typedef int32_t WordPart __attribute__((vector_size(64 / PARTS)));

template <class Part>
struct Sixteen {
    Part part[PARTS];
};
using Lanes = Sixteen<FloatPart>;
using Words = Sixteen<WordPart>;

// Calls body(i) for all parts.
template <class Body>
inline __attribute__((always_inline)) void each_part(const Body& body) {
#pragma GCC unroll 4
    for (int i = 0; i < PARTS; i++) body(i);
}

#define OCTAVO_LANEWISE(sign)                                                                         \
    template <class Part>                                                                             \
    inline __attribute__((always_inline)) Sixteen<Part> operator sign(Sixteen<Part> a, Sixteen<Part> b) { \
        each_part([&](int i) { a.part[i] = a.part[i] sign b.part[i]; });                              \
        return a;                                                                                     \
    }
OCTAVO_LANEWISE(+)
OCTAVO_LANEWISE(*)
OCTAVO_LANEWISE(|)
#define OCTAVO_WITH_INT(sign)                                                         \
    inline __attribute__((always_inline)) Words operator sign(Words a, int32_t b) {   \
        each_part([&](int i) { a.part[i] = a.part[i] sign b; });                      \
        return a;                                                                     \
    }
OCTAVO_WITH_INT(&)
OCTAVO_WITH_INT(<<)
OCTAVO_WITH_INT(>>)
OCTAVO_WITH_INT(-)

inline __attribute__((always_inline)) Lanes splat(float value) {
    Lanes lanes;
    each_part([&](int i) { lanes.part[i] = FloatPart{} + value; });
    return lanes;
}
inline __attribute__((always_inline)) Words splat(int32_t value) {
    Words words;
    each_part([&](int i) { words.part[i] = WordPart{} + value; });
    return words;
}
inline __attribute__((always_inline)) Lanes to_floats(Words words) {
    Lanes lanes;
    each_part([&](int i) { lanes.part[i] = __builtin_convertvector(words.part[i], FloatPart); });
    return lanes;
}
inline __attribute__((always_inline)) Lanes negative(Lanes lanes) {
    each_part([&](int i) { lanes.part[i] = -lanes.part[i]; });
    return lanes;
}
inline __attribute__((always_inline)) Words bits_of(Lanes lanes) {
    Words words;
    memcpy(&words, &lanes, sizeof words);
    return words;
}
inline __attribute__((always_inline)) Lanes as_floats(Words words) {
    Lanes lanes;
    memcpy(&lanes, &words, sizeof lanes);
    return lanes;
}

// a * b + c, rounded once where the processor can.
inline __attribute__((always_inline)) Lanes fused(Lanes a, Lanes b, Lanes c) {
    each_part([&](int i) {
#if defined(__AVX512BW__)
        c.part[i] = (FloatPart)_mm512_fmadd_ps((__m512)a.part[i], (__m512)b.part[i], (__m512)c.part[i]);
#elif defined(__AVX2__)
        c.part[i] = (FloatPart)_mm256_fmadd_ps((__m256)a.part[i], (__m256)b.part[i], (__m256)c.part[i]);
#else
        c.part[i] += a.part[i] * b.part[i];
#endif
    });
    return c;
}

// Reads the first `count` of 16 words; the others are zero.
inline __attribute__((always_inline)) Words load_words(const uint8_t* from, int count) {
    Words words = {};
#if defined(__AVX512BW__)
    words.part[0] = (WordPart)_mm512_maskz_loadu_epi32(first_lanes(count), from);
#else
    if (__builtin_expect(count == LANES, 1)) {
        memcpy(&words, from, sizeof words);
    } else {
        memcpy(&words, from, 4 * static_cast<size_t>(count));
    }
#endif
    return words;
}

// Reads the first `count` of 16 halves of a word; the others are zero.
inline __attribute__((always_inline)) Words load_halves(const uint8_t* from, int count) {
    uint16_t halves[LANES] = {};
    memcpy(halves, from, 2 * static_cast<size_t>(count));
    int32_t whole[LANES];
    for (int i = 0; i < LANES; i++) whole[i] = halves[i];
    Words words;
    memcpy(&words, whole, sizeof words);
    return words;
}

// The same of float16, exact for all finite values.
inline __attribute__((always_inline)) Lanes load_f16(const uint8_t* from, int count) {
#if defined(__AVX512BW__)
    return {{(FloatPart)_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), from))}};
#else
    // Shifted in place, what is wrong is the exponent's bias alone.
    const Words halves = load_halves(from, count);
    const Lanes size = as_floats((halves & 0x7fff) << 13) * splat(0x1p112f);
    return as_floats(bits_of(size) | (halves & 0x8000) << 16);
#endif
}

// Of the four unsigned bytes of each word the first and the third, and the second and the fourth, each as 16 bits.
inline __attribute__((always_inline)) Words low_halves(Words bytes) { return bytes & 0x00ff00ff; }
inline __attribute__((always_inline)) Words high_halves(Words bytes) {
#if defined(__AVX512BW__)
    bytes.part[0] = (WordPart)_mm512_srli_epi16((__m512i)bytes.part[0], 8);
    return bytes;
#else
    return bytes >> 8 & 0x00ff00ff;
#endif
}

// sum + the products of the two halves of each word with those of `two`, all signed. Nothing overflows.
inline __attribute__((always_inline)) Words dot(Words sum, Words halves, const int32_t* two) {
#if defined(__AVX512VNNI__)
    // Compilers spread the word in an instruction of its own.
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum.part[0]) : "v"(halves.part[0]), "m"(*two));
    return sum;
#elif defined(__AVX2__) && !defined(__AVX512BW__)
    each_part([&](int i) { sum.part[i] += (WordPart)_mm256_madd_epi16((__m256i)halves.part[i], _mm256_set1_epi32(*two)); });
    return sum;
#else
    return sum + (halves << 16 >> 16) * splat(*two << 16 >> 16) + (halves >> 16) * splat(*two >> 16);
#endif
}

// Each byte, 0 to 15, becomes the byte of `table` [16] that it names.
inline __attribute__((always_inline)) Words look_up(Words bytes, const uint8_t* table) {
#if defined(__AVX512BW__)
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    bytes.part[0] = (WordPart)_mm512_shuffle_epi8(all, (__m512i)bytes.part[0]);
#elif defined(__AVX2__)
    const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
    each_part([&](int i) { bytes.part[i] = (WordPart)_mm256_shuffle_epi8(all, (__m256i)bytes.part[i]); });
#else
    uint8_t each[64];
    memcpy(each, &bytes, sizeof each);
    for (int i = 0; i < 64; i++) each[i] = table[each[i]];
    memcpy(&bytes, each, sizeof each);
#endif
    return bytes;
}

// Sixteen numbers of any dtype.
template <class T>
inline Lanes read_lanes(const T* from) {
    float whole[LANES];
    for (int i = 0; i < LANES; i++) whole[i] = widen(from[i]);
    Lanes lanes;
    memcpy(&lanes, whole, sizeof lanes);
    return lanes;
}

// Writes the first `count`.
template <class T>
inline void write_lanes(T* to, Lanes lanes, int count) {
    float whole[LANES];
    memcpy(whole, &lanes, sizeof whole);
    for (int i = 0; i < count; i += Floats::WIDTH) store_part(to + i, load(whole + i), min64(Floats::WIDTH, count - i));
}

OCTAVO_END
