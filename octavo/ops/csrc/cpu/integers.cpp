// Small arithmetic and gathers of whole numbers, as recordings have them between kernels (octavo/device/integers.py).
// levels: scalar
//
// Everything has two dimensions; strides count elements, and are 0 along what is repeated.
#include "kernel.h"

OCTAVO_BEGIN

enum Kind : int64_t { COPY, ADD, SUBTRACT, MULTIPLY, DIVIDE, REMAINDER, CLAMP, COUNT };

struct Numbers {
    char* memory;
    // 4 or 8 bytes each.
    int64_t bytes, row, column;

    char* at(int64_t i, int64_t j) const { return memory + (i * row + j * column) * bytes; }
    int64_t get(int64_t i, int64_t j) const {
        return bytes == 8 ? *reinterpret_cast<int64_t*>(at(i, j)) : *reinterpret_cast<int32_t*>(at(i, j));
    }
    void put(int64_t i, int64_t j, int64_t x) const {
        if (bytes == 8) {
            *reinterpret_cast<int64_t*>(at(i, j)) = x;
        } else {
            *reinterpret_cast<int32_t*>(at(i, j)) = static_cast<int32_t>(x);
        }
    }
};

struct IntegersArgs {
    Numbers out, a, b;
    int64_t kind, rows, columns;
    // What is added, or divided by, where b has no memory; clamp has both as bounds.
    int64_t scalar, most;
};

struct GatherArgs {
    Numbers out, from, i, j;
    int64_t rows, columns, from_rows, from_columns;
};

inline int64_t floored(int64_t a, int64_t b) { return a / b - ((a % b != 0) & ((a < 0) != (b < 0))); }

inline int64_t compute(int64_t kind, int64_t a, int64_t b, int64_t most) {
    switch (kind) {
        case ADD: return a + b;
        case SUBTRACT: return a - b;
        case MULTIPLY: return a * b;
        case DIVIDE: return floored(a, b);
        case REMAINDER: return a - floored(a, b) * b;
        case CLAMP: return min64(most, max64(b, a));
        default: return a;
    }
}

OCTAVO_END

OP(integers) {
    OCTAVO_USE;
    const auto& a = args<IntegersArgs>(raw);
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < a.columns; j++) {
            int64_t x = a.kind == COUNT ? a.scalar + j : a.a.get(i, j), y = a.b.memory == nullptr ? a.scalar : a.b.get(i, j);
            a.out.put(i, j, compute(a.kind, x, y, a.most));
        }
}

OP(gather) {
    OCTAVO_USE;
    const auto& a = args<GatherArgs>(raw);
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < a.columns; j++) {
            int64_t row = a.i.get(i, j), column = a.j.memory == nullptr ? j : a.j.get(i, j);
            row += row < 0 ? a.from_rows : 0;
            column += column < 0 ? a.from_columns : 0;
            a.out.put(i, j, a.from.get(row, column));
        }
}
