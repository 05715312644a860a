// One token for every row: the likeliest, or drawn from what temperature, min_p, top_k and top_p leave, in this order.
// levels: scalar avx2 avx512 neon
//
// Nothing is sorted: where a filter cuts is found digit by digit of the logits, as in a radix sort, with a count and a sum for
// each digit. A row is one thread's.
#include "choose.h"

OCTAVO_BEGIN

struct DrawArgs {
    const float* logits;
    const int64_t *slots, *positions;
    // By slot: temperature, top_p, min_p; and top_k, seed, choice, more.
    const double* reals;
    const int64_t* wholes;
    int64_t* ids;
    bool* ok;
    int64_t num_rows, size, row, wholes_row;
    double greedy_below;
};

constexpr int64_t SUMMED = 1024;

// e^x for x <= 0, to the last bits of a double; 0 below -700.
inline double exponential(double x) {
    constexpr double SHIFT = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves a whole number in the low bits
    double bounded = x < -700.0 ? -700.0 : x, shifted = bounded * 1.4426950408889634 + SHIFT, n = shifted - SHIFT;
    double r = bounded - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    uint64_t bits;
    memcpy(&bits, &shifted, 8);
    bits = (bits + 1023) << 52;
    double power;
    memcpy(&power, &bits, 8);
    return x < -700.0 ? 0.0 : p * power;
}

// Whole numbers in the order of the logits; the two zeros are one.
inline uint32_t key_of(float x) {
    uint32_t bits = to_bits(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// What is kept: keys above `key`, and the first `ties` of those that equal it.
struct Cut {
    uint32_t key;
    int64_t ties;
};

// Where the largest keys have come to `count` in number (if it is not 0) or else to `goal` in weight.
inline Cut find_cut(const float* logits, const double* weights, int64_t size, int64_t count, double goal) {
    struct Digit {
        int64_t count;
        double weight;
    };
    Digit* digits = static_cast<Digit*>(scratch(2, 2048 * sizeof(Digit)));
    uint32_t prefix = 0, mask = 0;
    int64_t above = 0;
    double heavier = 0.0;
    constexpr int SHIFTS[] = {21, 10, 0};
    for (int shift : SHIFTS) {
        uint32_t most = shift == 0 ? 1023 : 2047, chosen = 0;
        memset(digits, 0, (most + 1) * sizeof(Digit));
        for (int64_t i = 0; i < size; i++) {
            uint32_t key = key_of(logits[i]);
            if ((key & mask) != prefix) continue;
            Digit& digit = digits[key >> shift & most];
            digit.count++;
            digit.weight += weights[i];
        }
        uint32_t last = 0;
        while (digits[last].count == 0) last++;
        for (chosen = most; chosen > last; chosen--) {
            const Digit& digit = digits[chosen];
            if (count != 0 ? above + digit.count >= count : heavier + digit.weight >= goal) break;
            above += digit.count;
            heavier += digit.weight;
        }
        prefix |= chosen << shift;
        mask |= most << shift;
    }
    if (count != 0) return {prefix, count - above};
    int64_t ties = 0;
    for (int64_t i = 0; i < size && (ties == 0 || heavier < goal); i++) {
        if (key_of(logits[i]) != prefix) continue;
        ties++;
        heavier += weights[i];
    }
    return {prefix, ties};
}

inline void apply(Cut cut, const float* logits, double* weights, int64_t size) {
    for (int64_t i = 0; i < size; i++) {
        uint32_t key = key_of(logits[i]);
        if (key < cut.key || (key == cut.key && cut.ties-- <= 0)) weights[i] = 0.0;
    }
}

// SplitMix64, chained: octavo/ops/draw/uniform.py.
inline double uniform(int64_t seed, int64_t choice, int64_t position) {
    uint64_t state = 0;
    const int64_t parts[] = {seed, choice, position};
    for (int64_t part : parts) {
        state += (static_cast<uint64_t>(part) + 1) * 0x9E3779B97F4A7C15u;
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
        state = (state ^ state >> 27) * 0x94D049BB133111EBu;
        state ^= state >> 31;
    }
    return static_cast<double>(state >> 12) * 0x1p-52;
}

inline double sum_of(const double* weights, int64_t size) {
    double sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= size; i += 8)
        for (int j = 0; j < 8; j++) sums[j] += weights[i + j];
    for (; i < size; i++) sums[0] += weights[i];
    return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

// The first token at which the weights come to more than `number` of their sum.
inline int64_t invert(const double* weights, int64_t size, double number) {
    double* sums = static_cast<double*>(scratch(2, (size / SUMMED + 1) * sizeof(double)));
    double total = 0.0, reached = 0.0;
    for (int64_t first = 0; first < size; first += SUMMED)
        total += sums[first / SUMMED] = sum_of(weights + first, min64(SUMMED, size - first));
    double goal = number * total;
    int64_t first = 0, last = 0;
    while (first + SUMMED < size && reached + sums[first / SUMMED] <= goal) {
        reached += sums[first / SUMMED];
        first += SUMMED;
    }
    for (int64_t i = first; i < size; i++) {
        if (weights[i] == 0.0) continue;
        last = i;
        reached += weights[i];
        if (reached > goal) break;
    }
    return last;
}

inline int64_t draw_row(const DrawArgs& a, int64_t row, const float* logits, float peak) {
    const double* reals = a.reals + a.slots[row] * 3;
    const int64_t* wholes = a.wholes + a.slots[row] * a.wholes_row;
    double temperature = reals[0], top_p = reals[1], min_p = reals[2];
    double* weights = static_cast<double*>(scratch(1, a.size * sizeof(double)));
    for (int64_t i = 0; i < a.size; i++) {
        double weight = exponential((static_cast<double>(logits[i]) - static_cast<double>(peak)) / temperature);
        weights[i] = weight < min_p ? 0.0 : weight;
    }
    if (wholes[0] > 0 && wholes[0] < a.size) apply(find_cut(logits, weights, a.size, wholes[0], 0.0), logits, weights, a.size);
    if (top_p < 1.0)
        apply(find_cut(logits, weights, a.size, 0, top_p * sum_of(weights, a.size)), logits, weights, a.size);
    return invert(weights, a.size, uniform(wholes[1], wholes[2], a.positions[row]));
}

OCTAVO_END

OP(draw) {
    OCTAVO_USE;
    const auto& a = args<DrawArgs>(raw);
    parallel_for(a.num_rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const float* logits = a.logits + row * a.row;
            Peak peak = find_peak(logits, a.size);
            bool greedy = a.reals[a.slots[row] * 3] < a.greedy_below || a.wholes[a.slots[row] * a.wholes_row] == 1;
            a.ok[row] = peak.ok;
            a.ids[row] = greedy || !peak.ok ? peak.id : draw_row(a, row, logits, peak.value);
        }
    });
}
