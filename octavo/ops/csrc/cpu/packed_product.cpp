// x [rows, ins] times packed weights [outs, ins]: out [rows, outs].
//
// Exactly: codes become numbers in registers, and are multiplied as floats. By integers: x is cut into groups of 32 with one
// scale each and rounded to 16 bits; sums of a group are whole numbers. Either way a row's result is the same bits whatever
// rows are beside it: sums are made in one order, 16 or 32 inputs at a time.
// levels: scalar avx2 vnni neon
#include "packed.h"

OCTAVO_BEGIN
namespace {

struct ProductArgs {
    const void* x;
    const void* panels;
    const void* bias;
    void* out;
    int64_t kind, num_rows, num_ins, num_outs, x_stride, out_stride, x_dtype, out_dtype, bias_dtype, integers;
};

// Rows of x that share a panel's codes while those lie in registers: this many at most, else half as many, and so on.
constexpr int WIDEST = PARTS == 1 ? 8 : 4;

// Calls body(first row, rows) for all tiles.
template <class Body>
void each_tile(int64_t num_rows, const Body& body) {
    int rows = WIDEST;
    for (int64_t first = 0; first < num_rows; first += rows) {
        while (rows > num_rows - first) rows /= 2;
        body(first, rows);
    }
}

// x is copied so that a tile of M rows takes it from one place after another, M * ins numbers for each tile. Exactly:
// [ins][M] floats. By integers: [unit][M] records of words: 16 pairs of rounded inputs, their scale, and for each group what it
// adds to every output, -offset * the sum of its inputs (rounded, a whole number), or for codes with a minimum that sum (a float).
template <class K>
constexpr int RECORD = 17 + K::form.groups_of_unit();

// The largest rounded input.
constexpr float MOST = 32767.0f;

// Makes the record of 32 inputs.
template <class K, class T>
void round_unit(const T* x, int32_t* record) {
    constexpr Form F = K::form;
    float numbers[32];
    for (int i = 0; i < 32; i++) numbers[i] = widen(x[i]);
    // Sizes are in the order of their bits; what is not finite has the largest.
    int32_t largest = 0;
    for (int i = 0; i < 32; i++) {
        const auto size = static_cast<int32_t>(to_bits(numbers[i]) & 0x7fffffff);
        largest = size > largest ? size : largest;
    }
    const float most = from_bits(static_cast<uint32_t>(largest));
    const float scale = most / MOST + most * 0.0f, inverse = most > 0.0f ? MOST / most : 0.0f;
    // The lowest bits of what is moved to 1.5 * 2^23 are the nearest whole number.
    int16_t whole[32];
    for (int i = 0; i < 32; i++) whole[i] = static_cast<int16_t>(to_bits(numbers[i] * inverse + 0x1.8p23f));
    // In pairs as `low_halves` and `high_halves` take codes: of every four the first and the third, the second and the fourth.
    uint64_t fours[8];
    memcpy(fours, whole, 64);
    for (auto& four : fours) {
        four = (four & 0xffff00000000ffff) | (four >> 16 & 0xffff0000) | (four << 16 & 0xffff00000000);
    }
    memcpy(record, fours, 64);
    memcpy(record + 16, &scale, 4);
    for (int group = 0; group < F.groups_of_unit(); group++) {
        int32_t sum = 0;
        // Unrolled before it is made of vectors, it would stay single numbers.
#pragma GCC unroll 1
        for (int i = 0; i < F.group; i++) sum += whole[F.group * group + i];
        const float whole_sum = scale * static_cast<float>(sum);
        const int32_t offset = -F.offset * sum;
        memcpy(record + 17 + group, F.minimum ? static_cast<const void*>(&whole_sum) : &offset, 4);
    }
}

template <class K, class T>
const void* round_input(const ProductArgs& a, const T* x) {
    const int64_t units = a.num_ins / 32;
    auto* records = static_cast<int32_t*>(scratch(0, static_cast<size_t>(a.num_rows * units * RECORD<K> * 4)));
    parallel_for(units, max64(1, 128 / a.num_rows), [&](int64_t begin, int64_t end) {
        each_tile(a.num_rows, [&](int64_t first, int rows) {
            for (int m = 0; m < rows; m++) {
                const T* row = x + (first + m) * a.x_stride;
                int32_t* record = records + (first * units + begin * rows + m) * RECORD<K>;
                for (int64_t u = begin; u < end; u++, record += rows * RECORD<K>) round_unit<K>(row + 32 * u, record);
            }
        });
    });
    return records;
}

template <class T>
const void* widen_input(const ProductArgs& a, const T* x) {
    auto* floats = static_cast<float*>(scratch(0, static_cast<size_t>(a.num_rows * a.num_ins * 4)));
    parallel_for(a.num_ins, max64(1, 4096 / a.num_rows), [&](int64_t begin, int64_t end) {
        each_tile(a.num_rows, [&](int64_t first, int rows) {
            float* to = floats + first * a.num_ins;
            for (int64_t k = begin; k < end; k++) {
                for (int m = 0; m < rows; m++) to[k * rows + m] = widen(x[(first + m) * a.x_stride + k]);
            }
        });
    });
    return floats;
}

// Adds to M rows' sums what a unit gives them.
template <int GROUPS, bool MINIMUM, int M>
inline __attribute__((always_inline)) void add_unit(
    const Words* codes, const Lanes* scales, const Lanes* minima, const int32_t* records, Lanes* sums) {
    // A group's sum is added up in so many, as one waits for its own last step.
    constexpr int STEPS = 8 / GROUPS, CHAINS = M < 8 ? 2 : 1, SIZE = 17 + GROUPS;
#pragma GCC unroll 2
    for (int g = 0; g < GROUPS; g++) {
        Words whole[M], other[M];
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            whole[m] = splat(MINIMUM ? 0 : records[SIZE * m + 17 + g]);
            other[m] = splat(0);
        }
#pragma GCC unroll 8
        for (int s = g * STEPS; s < (g + 1) * STEPS; s++) {
            const Words low = low_halves(codes[s]), high = high_halves(codes[s]);
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) whole[m] = dot(whole[m], low, records + SIZE * m + 2 * s);
#pragma GCC unroll 16
            for (int m = 0; m < M; m++) {
                Words& sum = CHAINS == 1 ? whole[m] : other[m];
                sum = dot(sum, high, records + SIZE * m + 2 * s + 1);
            }
        }
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) {
            if (CHAINS == 2) whole[m] = whole[m] + other[m];
            sums[m] = fused(to_floats(whole[m]) * scales[g], splat(from_bits(records[SIZE * m + 16])), sums[m]);
            if (MINIMUM) sums[m] = fused(minima[g], splat(from_bits(records[SIZE * m + 17 + g])), sums[m]);
        }
    }
}

// Adds what 16 inputs give; weight(i) are the weights of the i-th.
template <int M, class Weight>
inline __attribute__((always_inline)) void add_inputs(const Weight& weight, const float* in, Lanes* sums) {
    Lanes some[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) some[m] = splat(0.0f);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        const Lanes weights = weight(i);
#pragma GCC unroll 16
        for (int m = 0; m < M; m++) some[m] = fused(weights, splat(in[M * i + m]), some[m]);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; m++) sums[m] = sums[m] + some[m];
}

// Bytes ahead that weights are asked for. With few rows it would only be in the way: they are read as fast as memory gives them.
constexpr int AHEAD = 4096;

// Calls body(unit's number, codes, scales, minima) for all units of a panel.
template <class K, bool FETCH, class Body>
inline __attribute__((always_inline)) void each_unit(const uint8_t* panel, int rows, int64_t num_ins, const Body& body) {
    constexpr Form F = K::form;
    constexpr int GROUPS = F.groups_of_unit(), STEP = F.bytes * LANES / F.units();
    for (int64_t b = 0; b < num_ins / F.block; b++, panel += F.bytes * rows) {
        const Block<K> block(panel, rows);
        const uint8_t* unit = panel + Block<K>::HEADER * rows;
        for (int u = 0; u < F.units(); u++, unit += Block<K>::UNIT * rows) {
            for (int at = 0; FETCH && at < STEP; at += 64) __builtin_prefetch(panel + STEP * u + at + AHEAD, 0, 2);
            Words codes[8];
            load_codes<K>(unit, rows, codes);
            Lanes scales[GROUPS], minima[GROUPS];
            for (int g = 0; g < GROUPS; g++) {
                scales[g] = block.scale(GROUPS * u + g);
                if constexpr (F.minimum) minima[g] = block.minimum(GROUPS * u + g);
            }
            body(b * F.units() + u, codes, scales, minima);
        }
    }
}

// The weights of input `half * 16 + i` of a unit, as numbers.
template <class K>
inline __attribute__((always_inline)) Lanes number(int half, int i, const Words* codes, const Lanes* scales, const Lanes* minima) {
    constexpr Form F = K::form;
    const int g = F.groups_of_unit() == 2 ? half : 0;
    const Lanes base = F.minimum ? minima[g] : scales[g] * splat(static_cast<float>(-F.offset));
    return fused(to_floats(codes[4 * half + i / 4] >> (8 * (i % 4)) & 255), scales[g], base);
}

// One panel with M rows of x.
template <class K, int M>
void by_integers(const uint8_t* panel, int count, int64_t num_ins, const int32_t* records, Lanes* sums) {
    constexpr Form F = K::form;
    each_unit<K, M == WIDEST>(panel, count, num_ins, [&](int64_t u, const Words* codes, const Lanes* scales, const Lanes* minima) {
        add_unit<F.groups_of_unit(), F.minimum, M>(codes, scales, minima, records + RECORD<K> * M * u, sums);
    });
}

template <class K, int M>
void exactly(const uint8_t* panel, int count, int64_t num_ins, const float* in, Lanes* sums) {
    each_unit<K, M == WIDEST>(panel, count, num_ins, [&](int64_t u, const Words* codes, const Lanes* scales, const Lanes* minima) {
        for (int half = 0; half < 2; half++) {
            add_inputs<M>([&](int i) { return number<K>(half, i, codes, scales, minima); }, in + (32 * u + 16 * half) * M, sums);
        }
    });
}

void put(const ProductArgs& a, int64_t row, int64_t out, int count, Lanes sums) {
    if (a.bias != nullptr) {
        float bias[LANES] = {};
        with_dtype(a.bias_dtype, [&](auto zero) {
            for (int i = 0; i < count; i++) bias[i] = widen(static_cast<const decltype(zero)*>(a.bias)[out + i]);
        });
        sums = sums + read_lanes(bias);
    }
    with_dtype(a.out_dtype, [&](auto zero) {
        write_lanes(static_cast<decltype(zero)*>(a.out) + row * a.out_stride + out, sums, count);
    });
}

// One panel with all rows of x from `first` on, M at a time, then fewer.
template <class K, int M>
void tiles(const ProductArgs& a, const uint8_t* panel, int64_t out, const void* input, int64_t first) {
    const int count = static_cast<int>(min64(LANES, a.num_outs - out));
    for (; first + M <= a.num_rows; first += M) {
        Lanes sums[M];
        for (int m = 0; m < M; m++) sums[m] = splat(0.0f);
        if (a.integers) {
            by_integers<K, M>(panel, count, a.num_ins, static_cast<const int32_t*>(input) + first * (a.num_ins / 32 * RECORD<K>), sums);
        } else {
            exactly<K, M>(panel, count, a.num_ins, static_cast<const float*>(input) + first * a.num_ins, sums);
        }
        for (int m = 0; m < M; m++) put(a, first + m, out, count, sums[m]);
    }
    if constexpr (M > 1) tiles<K, M / 2>(a, panel, out, input, first);
}

template <class K>
void multiply(const ProductArgs& a) {
    const void* input = nullptr;
    with_dtype(a.x_dtype, [&](auto zero) {
        const auto* x = static_cast<const decltype(zero)*>(a.x);
        input = a.integers ? round_input<K>(a, x) : widen_input(a, x);
    });
    const int64_t row_bytes = a.num_ins / K::form.block * K::form.bytes;
    parallel_for((a.num_outs + LANES - 1) / LANES, 1, [&](int64_t begin, int64_t end) {
        for (int64_t out = begin * LANES; out < end * LANES; out += LANES) {
            tiles<K, WIDEST>(a, static_cast<const uint8_t*>(a.panels) + out * row_bytes, out, input, 0);
        }
    });
}

}  // namespace
OCTAVO_END

OP(packed_product) {
    OCTAVO_USE;
    const auto& a = args<ProductArgs>(raw);
    with_kind(a.kind, [&](auto kind) { multiply<decltype(kind)>(a); });
}
