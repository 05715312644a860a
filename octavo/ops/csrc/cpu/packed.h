// Weights of few bits, and how they lie in memory once they are packed.
//
// The kinds are GGUF's: a row is cut into blocks, a block holds codes of LOW + HIGH bits, scales (and minima) of its groups.
// Packed, 16 rows (fewer at the end) lie side by side in a panel, so that one register takes the same thing of all of them:
//
//     panel = its blocks one after another; block = half-word fields [field][row], word fields [word][row], then units
//     unit = 32 codes of a row: low plane [word][row], high plane [word][row]
//
// A step of a product takes 4 codes of a row, the bytes of a word. In a plane of b bits a word has 8 / b steps, step 0 in the
// lowest bits of each byte. A panel has as many bytes as its rows in the file, so they are packed where they lie.
#pragma once

#include "lanes.h"

OCTAVO_BEGIN

// In a file: every `run` bytes hold the lowest bits of as many codes, then the next bits of as many more.
struct Plane {
    int bits, at, run;
};

// How scales and minima are made of a block's fields.
enum class Scales { ONE, NIBBLES, SIX_OF_SIXTEEN, SIX_OF_EIGHT, BYTES, SIX_APART };

struct Form {
    int block, bytes;
    Plane low, high;
    int group;
    Scales scales;
    int num_halves, halves_at, num_words, words_at;
    int offset;     // what is subtracted from a code
    bool minimum;   // whether groups have one, which is added
    bool looked_up; // codes name one of 16 values
    int flip;       // bits of a code to turn over

    constexpr int units() const { return block / 32; }
    constexpr int groups_of_unit() const { return 32 / group; }
};

// By ggml's number. Kinds: Q4_0 2, Q4_1 3, Q5_0 6, Q5_1 7, Q8_0 8, Q2_K 10, Q3_K 11, Q4_K 12, Q5_K 13, Q6_K 14, IQ4_NL 20, IQ4_XS 23.
constexpr Form form_of(int kind) {
    switch (kind) {
        case 2: return {32, 18, {4, 2, 16}, {}, 32, Scales::ONE, 1, 0, 0, 0, 8, false, false, 0};
        case 3: return {32, 20, {4, 4, 16}, {}, 32, Scales::ONE, 2, 0, 0, 0, 0, true, false, 0};
        case 6: return {32, 22, {4, 6, 16}, {1, 2, 1}, 32, Scales::ONE, 1, 0, 0, 0, 16, false, false, 0};
        case 7: return {32, 24, {4, 8, 16}, {1, 4, 1}, 32, Scales::ONE, 2, 0, 0, 0, 0, true, false, 0};
        case 8: return {32, 34, {8, 2, 32}, {}, 32, Scales::ONE, 1, 0, 0, 0, 128, false, false, 128};
        case 10: return {256, 84, {2, 16, 32}, {}, 16, Scales::NIBBLES, 2, 80, 4, 0, 0, true, false, 0};
        case 11: return {256, 110, {2, 32, 32}, {1, 0, 32}, 16, Scales::SIX_OF_SIXTEEN, 1, 108, 3, 96, 4, false, false, 0};
        case 12: return {256, 144, {4, 16, 32}, {}, 32, Scales::SIX_OF_EIGHT, 2, 0, 3, 4, 0, true, false, 0};
        case 13: return {256, 176, {4, 48, 32}, {1, 16, 32}, 32, Scales::SIX_OF_EIGHT, 2, 0, 3, 4, 0, true, false, 0};
        case 14: return {256, 210, {4, 0, 64}, {2, 128, 32}, 16, Scales::BYTES, 1, 208, 4, 192, 32, false, false, 0};
        case 20: return {32, 18, {4, 2, 16}, {}, 32, Scales::ONE, 1, 0, 0, 0, 128, false, true, 0};
        default: return {256, 136, {4, 8, 16}, {}, 32, Scales::SIX_APART, 2, 0, 1, 4, 128, false, true, 0};
    }
}

template <int K>
struct Kind {
    static constexpr Form form = form_of(K);
};

// Calls body(Kind<K>{}).
template <class Body>
inline void with_kind(int64_t kind, const Body& body) {
    switch (kind) {
        case 2: return body(Kind<2>{});
        case 3: return body(Kind<3>{});
        case 6: return body(Kind<6>{});
        case 7: return body(Kind<7>{});
        case 8: return body(Kind<8>{});
        case 10: return body(Kind<10>{});
        case 11: return body(Kind<11>{});
        case 12: return body(Kind<12>{});
        case 13: return body(Kind<13>{});
        case 14: return body(Kind<14>{});
        case 20: return body(Kind<20>{});
        default: return body(Kind<23>{});
    }
}

// IQ4's sixteen values, and 128 more.
constexpr uint8_t IQ4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

// Scales and minima of a block's groups, of all rows of a panel.
template <class K>
class Block {
    static constexpr Form F = K::form;

  public:
    Block(const uint8_t* from, int rows) {
        first_ = load_f16(from, rows);
        if constexpr (F.num_halves == 2 && F.minimum) second_ = load_f16(from + 2 * rows, rows);
        if constexpr (F.scales == Scales::SIX_APART) words_[1] = load_halves(from + 2 * rows, rows);
        const uint8_t* words = from + 2 * rows * F.num_halves;
        for (int i = 0; i < F.num_words; i++) words_[i] = load_words(words + 4 * rows * i, rows);
    }

    Lanes scale(int group) const {
        const int byte = 8 * (group % 4);
        Words small;
        if constexpr (F.scales == Scales::ONE) return first_;
        if constexpr (F.scales == Scales::NIBBLES) small = words_[group / 4] >> byte & 15;
        if constexpr (F.scales == Scales::BYTES) small = words_[group / 4] << (24 - byte) >> 24;
        if constexpr (F.scales == Scales::SIX_OF_SIXTEEN) {
            Words low = words_[group / 4 % 2] >> (byte + group / 8 * 4) & 15;
            small = (low | (words_[2] >> (byte + group / 4 * 2) & 3) << 4) - 32;
        }
        if constexpr (F.scales == Scales::SIX_OF_EIGHT) {
            small = group < 4 ? words_[0] >> byte & 63 : (words_[2] >> byte & 15) | (words_[0] >> (byte + 6) & 3) << 4;
        }
        if constexpr (F.scales == Scales::SIX_APART) {
            small = ((words_[0] >> (4 * group) & 15) | (words_[1] >> (2 * group) & 3) << 4) - 32;
        }
        return to_floats(small) * first_;
    }

    Lanes minimum(int group) const {
        const int byte = 8 * (group % 4);
        if constexpr (!F.minimum) return splat(0.0f);
        if constexpr (F.scales == Scales::ONE) return second_;
        Words small;
        if constexpr (F.scales == Scales::NIBBLES) small = words_[group / 4] >> (byte + 4) & 15;
        if constexpr (F.scales == Scales::SIX_OF_EIGHT) {
            small = group < 4 ? words_[1] >> byte & 63 : (words_[2] >> (byte + 4) & 15) | (words_[1] >> (byte + 6) & 3) << 4;
        }
        return negative(to_floats(small) * second_);
    }

    // Where its units begin.
    static constexpr int HEADER = 2 * F.num_halves + 4 * F.num_words;
    // Bytes of a unit of a row.
    static constexpr int UNIT = 4 * (F.low.bits + F.high.bits);

  private:
    Lanes first_, second_;
    Words words_[5];
};

// The codes of a unit: step s has those of inputs 4 s to 4 s + 3, unsigned bytes.
template <class K>
inline void load_codes(const uint8_t* unit, int rows, Words codes[8]) {
    constexpr Form F = K::form;
    constexpr int LOW = 8 / F.low.bits;
    constexpr int32_t MASK = F.low.bits == 8 ? -1 : 0x01010101 * ((1 << F.low.bits) - 1);
    for (int word = 0; word < F.low.bits; word++) {
        Words held = load_words(unit + 4 * rows * word, rows);
        for (int i = 0; i < LOW; i++) {
            Words code = F.low.bits == 8 ? held : held >> (F.low.bits * i) & MASK;
            codes[word * LOW + i] = F.looked_up ? look_up(code, IQ4) : code;
        }
    }
    if constexpr (F.high.bits != 0) {
        constexpr int HIGH = 8 / F.high.bits;
        constexpr int32_t TOP = 0x01010101 * (((1 << F.high.bits) - 1) << F.low.bits);
        for (int word = 0; word < F.high.bits; word++) {
            Words held = load_words(unit + 4 * rows * (F.low.bits + word), rows);
            for (int i = 0; i < HIGH; i++) {
                // What is shifted in from the next byte falls to the mask.
                const int up = F.low.bits - F.high.bits * i;
                codes[word * HIGH + i] = codes[word * HIGH + i] | ((up >= 0 ? held << (up > 0 ? up : 0) : held >> (up < 0 ? -up : 0)) & TOP);
            }
        }
    }
}

OCTAVO_END
