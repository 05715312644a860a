// x [rows, ins] times packed weights [outs, ins]: out [rows, outs].
//
// Exactly: codes become numbers in registers, and are multiplied as floats. By integers: x is cut into groups of 32 with one
// scale each and rounded to 8 bits; a group's codes are multiplied with those. Either way a row's result is the same bits
// whatever rows are beside it: sums are made in one order, 16 or 32 inputs at a time.
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

// Rows of x that share a panel's codes while those lie in registers: 1, 2, 4… up to this.
constexpr int WIDEST = PARTS == 1 ? 16 : 4;

inline int tile_rows(int64_t left) {
    int rows = WIDEST;
    while (rows > left) rows /= 2;
    return rows;
}

// x is copied so that a tile of M rows takes it from one place after another, M * ins numbers for each tile. Exactly:
// [ins][M] floats. By integers: [unit][M] records of words: 32 rounded inputs, their scale, and for each group what it adds to
// every output, -offset * the sum of its inputs (rounded, a whole number), or for codes with a minimum that sum (a float).
template <class K>
constexpr int RECORD = 9 + K::form.groups_of_unit();

template <class K, class T>
void round_row(const T* x, int64_t num_ins, int32_t* record, int apart) {
    constexpr Form F = K::form;
    for (int64_t first = 0; first < num_ins; first += 32, record += RECORD<K> * apart) {
        float numbers[32], most = 0.0f, poison = 0.0f;
        for (int i = 0; i < 32; i++) numbers[i] = widen(x[first + i]);
        for (int i = 0; i < 32; i++) most = most > fabsf(numbers[i]) ? most : fabsf(numbers[i]);
        // NaN where a number is not finite, else 0.
        for (int i = 0; i < 32; i++) poison += numbers[i] * 0.0f;
        const float scale = most / 127.0f + poison, inverse = most > 0.0f ? 127.0f / most : 0.0f;
        // The lowest bits of what is moved to 1.5 * 2^23 are the nearest whole number.
        int8_t whole[32];
        for (int i = 0; i < 32; i++) whole[i] = static_cast<int8_t>(to_bits(numbers[i] * inverse + 0x1.8p23f));
        memcpy(record, whole, 32);
        memcpy(record + 8, &scale, 4);
        for (int group = 0; group < F.groups_of_unit(); group++) {
            int32_t sum = 0;
            for (int i = 0; i < F.group; i++) sum += whole[F.group * group + i];
            const float whole_sum = scale * static_cast<float>(sum);
            const int32_t offset = -F.offset * sum;
            memcpy(record + 9 + group, F.minimum ? static_cast<const void*>(&whole_sum) : &offset, 4);
        }
    }
}

// Calls body(i, row 0 of i's tile, rows of the tile) for the rows of x.
template <class Body>
void each_row(int64_t num_rows, const Body& body) {
    parallel_for(num_rows, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            int64_t first = i / WIDEST * WIDEST;
            int rows = tile_rows(num_rows - first);
            for (; i >= first + rows; rows = tile_rows(num_rows - first)) first += rows;
            body(i, first, rows);
        }
    });
}

template <class K, class T>
const void* round_input(const ProductArgs& a, const T* x) {
    const int64_t words = a.num_ins / 32 * RECORD<K>;
    auto* records = static_cast<int32_t*>(scratch(0, static_cast<size_t>(a.num_rows * words * 4)));
    each_row(a.num_rows, [&](int64_t i, int64_t first, int rows) {
        round_row<K>(x + i * a.x_stride, a.num_ins, records + first * words + (i - first) * RECORD<K>, rows);
    });
    return records;
}

template <class T>
const void* widen_input(const ProductArgs& a, const T* x) {
    auto* floats = static_cast<float*>(scratch(0, static_cast<size_t>(a.num_rows * a.num_ins * 4)));
    each_row(a.num_rows, [&](int64_t i, int64_t first, int rows) {
        float* to = floats + first * a.num_ins + (i - first);
        for (int64_t k = 0; k < a.num_ins; k++) to[k * rows] = widen(x[i * a.x_stride + k]);
    });
    return floats;
}

template <class K, int M>
void by_integers(const uint8_t* panel, int rows, int64_t num_ins, const int32_t* record, Lanes sums[M]) {
    constexpr Form F = K::form;
    constexpr int STEPS = F.group / 4, GROUPS = F.groups_of_unit();
    for (int64_t b = 0; b < num_ins / F.block; b++, panel += F.bytes * rows) {
        const Block<K> block(panel, rows);
        const uint8_t* unit = panel + Block<K>::HEADER * rows;
        for (int u = 0; u < F.units(); u++, unit += Block<K>::UNIT * rows, record += RECORD<K> * M) {
            Words codes[8];
            load_codes<K>(unit, rows, codes);
#pragma GCC unroll 2
            for (int g = 0; g < GROUPS; g++) {
                const Lanes scale = block.scale(u * GROUPS + g), minimum = block.minimum(u * GROUPS + g);
#pragma GCC unroll 16
                for (int m = 0; m < M; m++) {
                    const int32_t* in = record + RECORD<K> * m;
                    float in_scale, in_sum;
                    memcpy(&in_scale, in + 8, 4);
                    memcpy(&in_sum, in + 9 + g, 4);
                    Words products = splat(F.minimum ? 0 : in[9 + g]);
#pragma GCC unroll 8
                    for (int s = g * STEPS; s < (g + 1) * STEPS; s++) products = dot(products, codes[s], in[s]);
                    sums[m] = fused(to_floats(products), scale * splat(in_scale), sums[m]);
                    if (F.minimum) sums[m] = fused(minimum, splat(in_sum), sums[m]);
                }
            }
        }
    }
}

template <class K, int M>
void exactly(const uint8_t* panel, int rows, int64_t num_ins, const float* in, Lanes sums[M]) {
    constexpr Form F = K::form;
    constexpr int GROUPS = F.groups_of_unit();
    for (int64_t b = 0; b < num_ins / F.block; b++, panel += F.bytes * rows) {
        const Block<K> block(panel, rows);
        const uint8_t* unit = panel + Block<K>::HEADER * rows;
        for (int u = 0; u < F.units(); u++, unit += Block<K>::UNIT * rows) {
            Words codes[8];
            load_codes<K>(unit, rows, codes);
            for (int half = 0; half < 2; half++, in += 16 * M) {
                const int g = u * GROUPS + (GROUPS == 2 ? half : 0);
                const Lanes scale = block.scale(g);
                const Lanes base = F.minimum ? block.minimum(g) : scale * splat(static_cast<float>(-F.offset));
                Lanes half_sums[M];
#pragma GCC unroll 16
                for (int m = 0; m < M; m++) half_sums[m] = splat(0.0f);
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++) {
                    const Words code = codes[4 * half + i / 4] >> (8 * (i % 4)) & 255;
                    const Lanes weight = fused(to_floats(code), scale, base);
#pragma GCC unroll 16
                    for (int m = 0; m < M; m++) half_sums[m] = fused(weight, splat(in[M * i + m]), half_sums[m]);
                }
#pragma GCC unroll 16
                for (int m = 0; m < M; m++) sums[m] = sums[m] + half_sums[m];
            }
        }
    }
}

// One panel with rows [first, first + M) of x.
template <class K, int M>
void tile(const ProductArgs& a, const void* input, int64_t panel, int64_t first) {
    const int64_t out = panel * LANES;
    const int rows = static_cast<int>(min64(LANES, a.num_outs - out));
    const uint8_t* from = static_cast<const uint8_t*>(a.panels) + out * (a.num_ins / K::form.block) * K::form.bytes;
    Lanes sums[M];
    for (int m = 0; m < M; m++) sums[m] = splat(0.0f);
    if (a.integers) {
        const int64_t words = a.num_ins / 32 * RECORD<K>;
        by_integers<K, M>(from, rows, a.num_ins, static_cast<const int32_t*>(input) + first * words, sums);
    } else {
        exactly<K, M>(from, rows, a.num_ins, static_cast<const float*>(input) + first * a.num_ins, sums);
    }
    if (a.bias != nullptr) {
        float bias[LANES] = {};
        with_dtype(a.bias_dtype, [&](auto zero) {
            for (int i = 0; i < rows; i++) bias[i] = widen(static_cast<const decltype(zero)*>(a.bias)[out + i]);
        });
        for (int m = 0; m < M; m++) sums[m] = sums[m] + read_lanes(bias);
    }
    for (int m = 0; m < M; m++) {
        const int64_t at = (first + m) * a.out_stride + out;
        with_dtype(a.out_dtype, [&](auto zero) {
            write_lanes(static_cast<decltype(zero)*>(a.out) + at, sums[m], rows);
        });
    }
}

template <class K, int M>
void tiles(const ProductArgs& a, const void* input, int64_t panel, int64_t first) {
    for (; first + M <= a.num_rows; first += M) tile<K, M>(a, input, panel, first);
    if constexpr (M > 1) tiles<K, M / 2>(a, input, panel, first);
}

template <class K>
void multiply(const ProductArgs& a) {
    const void* input = nullptr;
    with_dtype(a.x_dtype, [&](auto zero) {
        const auto* x = static_cast<const decltype(zero)*>(a.x);
        input = a.integers ? round_input<K>(a, x) : widen_input(a, x);
    });
    parallel_for((a.num_outs + LANES - 1) / LANES, 1, [&](int64_t begin, int64_t end) {
        for (int64_t panel = begin; panel < end; panel++) tiles<K, WIDEST>(a, input, panel, 0);
    });
}

}  // namespace
OCTAVO_END

OP(packed_product) {
    OCTAVO_USE;
    const auto& a = args<ProductArgs>(raw);
    with_kind(a.kind, [&](auto kind) { multiply<decltype(kind)>(a); });
}
