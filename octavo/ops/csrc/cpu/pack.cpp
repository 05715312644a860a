// From blocks as a GGUF file has them to panels, in place, and from panels to numbers.
// levels: scalar
#include "packed.h"

OCTAVO_BEGIN
namespace {

// Where a code of a row in a file's block has its bits in one plane, and where in a unit. shift: of the lowest of them.
struct Place {
    int byte, shift;
};

constexpr Place in_file(Plane plane, int code) {
    const int run = plane.run * (8 / plane.bits), within = code % run;
    return {plane.at + code / run * plane.run + within % plane.run, within / plane.run * plane.bits};
}

constexpr Place in_unit(int bits, int code) {
    const int step = code / 4, steps = 8 / bits;
    return {4 * (step / steps) + code % 4, step % steps * bits};
}

// Moves the bits of one plane of a row's block to its units; `rows` is how far words of a row are apart.
template <class K>
void move_plane(const uint8_t* block, uint8_t* units, int rows, Plane plane, int first_word, int flip) {
    constexpr Form F = K::form;
    for (int unit = 0; unit < F.units(); unit++) {
        uint8_t bytes[32] = {};
        for (int code = 0; code < 32; code++) {
            const Place from = in_file(plane, 32 * unit + code), to = in_unit(plane.bits, code);
            const int bits = (block[from.byte] >> from.shift & ((1 << plane.bits) - 1)) ^ flip;
            bytes[to.byte] = static_cast<uint8_t>(bytes[to.byte] | bits << to.shift);
        }
        uint8_t* words = units + rows * (Block<K>::UNIT * unit + 4 * first_word);
        for (int word = 0; word < plane.bits; word++) memcpy(words + 4 * rows * word, bytes + 4 * word, 4);
    }
}

template <class K>
void pack_panel(uint8_t* panel, int rows, int64_t blocks, uint8_t* copy) {
    constexpr Form F = K::form;
    memcpy(copy, panel, static_cast<size_t>(rows * blocks * F.bytes));
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t* to = panel + b * F.bytes * rows;
        uint8_t* words = to + 2 * rows * F.num_halves;
        uint8_t* units = to + Block<K>::HEADER * rows;
        for (int row = 0; row < rows; row++) {
            const uint8_t* from = copy + (row * blocks + b) * F.bytes;
            // Minima of Q2_K come after its codes, as its scale does: halves that a block has lie together in all kinds.
            for (int i = 0; i < F.num_halves; i++) memcpy(to + 2 * (rows * i + row), from + F.halves_at + 2 * i, 2);
            for (int i = 0; i < F.num_words; i++) memcpy(words + 4 * (rows * i + row), from + F.words_at + 4 * i, 4);
            move_plane<K>(from, units + 4 * row, rows, F.low, 0, F.flip);
            if constexpr (F.high.bits != 0) move_plane<K>(from, units + 4 * row, rows, F.high, F.low.bits, 0);
        }
    }
}

// Writes the numbers of one row of a panel.
template <class K, class T>
void read_row(const uint8_t* panel, int rows, int row, int64_t blocks, T* out) {
    constexpr Form F = K::form;
    for (int64_t b = 0; b < blocks; b++) {
        // The row alone, as a panel of one.
        uint8_t alone[F.bytes];
        const uint8_t* from = panel + b * F.bytes * rows;
        for (int i = 0; i < F.num_halves; i++) memcpy(alone + 2 * i, from + 2 * (rows * i + row), 2);
        from += 2 * F.num_halves * rows;
        for (int i = 0; i < (F.bytes - 2 * F.num_halves) / 4; i++) {
            memcpy(alone + 2 * F.num_halves + 4 * i, from + 4 * (rows * i + row), 4);
        }
        const Block<K> block(alone, 1);
        for (int unit = 0; unit < F.units(); unit++) {
            Words codes[8];
            load_codes<K>(alone + Block<K>::HEADER + Block<K>::UNIT * unit, 1, codes);
            uint8_t bytes[32];
            for (int step = 0; step < 8; step++) memcpy(bytes + 4 * step, &codes[step], 4);
            for (int code = 0; code < 32; code++) {
                const int group = unit * F.groups_of_unit() + code / F.group;
                const int number = bytes[code] - F.offset;
                const float value = static_cast<float>(number) * block.scale(group).part[0][0];
                narrow(F.minimum ? value + block.minimum(group).part[0][0] : value, out++);
            }
        }
    }
}

struct PackArgs {
    void* blocks;  // [outs, bytes of a row]
    int64_t kind, num_outs, num_ins;
};

struct RowsArgs {
    const void* panels;
    const int64_t* ids;
    void* out;  // [count, ins]
    int64_t kind, num_outs, num_ins, count, dtype;
};

template <class K>
void pack(const PackArgs& a) {
    const int64_t blocks = a.num_ins / K::form.block, bytes = blocks * K::form.bytes;
    parallel_for((a.num_outs + LANES - 1) / LANES, 1, [&](int64_t begin, int64_t end) {
        auto* copy = static_cast<uint8_t*>(scratch(0, static_cast<size_t>(LANES * bytes)));
        for (int64_t panel = begin; panel < end; panel++) {
            const int rows = static_cast<int>(min64(LANES, a.num_outs - panel * LANES));
            pack_panel<K>(static_cast<uint8_t*>(a.blocks) + panel * LANES * bytes, rows, blocks, copy);
        }
    });
}

template <class K, class T>
void read_rows(const RowsArgs& a, T* out) {
    const int64_t blocks = a.num_ins / K::form.block, bytes = blocks * K::form.bytes;
    parallel_for(a.count, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t first = a.ids[i] / LANES * LANES;
            read_row<K>(static_cast<const uint8_t*>(a.panels) + first * bytes, static_cast<int>(min64(LANES, a.num_outs - first)),
                        static_cast<int>(a.ids[i] - first), blocks, out + i * a.num_ins);
        }
    });
}

}  // namespace
OCTAVO_END

OP(pack) {
    OCTAVO_USE;
    const PackArgs& a = args<PackArgs>(raw);
    with_kind(a.kind, [&](auto kind) { pack<decltype(kind)>(a); });
}

OP(packed_rows) {
    OCTAVO_USE;
    const RowsArgs& a = args<RowsArgs>(raw);
    with_kind(a.kind, [&](auto kind) {
        with_dtype(a.dtype, [&](auto zero) { read_rows<decltype(kind)>(a, static_cast<decltype(zero)*>(a.out)); });
    });
}
