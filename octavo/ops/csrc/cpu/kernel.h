// What every kernel source begins with: its level's namespace, the names it exports, element types, and parallel_for.
//
// A source is compiled once for each instruction set in its `// levels:` line (see LEVELS in tools/build_cpu.py), all into one
// library. So everything lies in namespace octavo::LEVEL, and no template or inline function of the standard library is used
// that a linker could take from another level: the wrong one would stop an older processor.
//
// An op is `OP(name) { const NameArgs& a = args<NameArgs>(raw); ... }`. Its Args have fields of eight bytes only, in the order
// of the tuple that octavo/base/native.py packs: pointers, int64_t, double. Strides count elements. A null pointer: not given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "team.h"

#ifndef OCTAVO_LEVEL
#error "compile with tools/build_cpu.py"
#endif

#define OCTAVO_JOIN_(a, b, c) a##b##_##c
#define OCTAVO_JOIN(a, b, c) OCTAVO_JOIN_(a, b, c)
#define OP(name)                                                                   \
    extern "C" __attribute__((visibility("default"))) void OCTAVO_JOIN(octavo_, name, OCTAVO_LEVEL)(const void* raw)

#define OCTAVO_BEGIN   \
    namespace octavo { \
    namespace OCTAVO_LEVEL {
#define OCTAVO_END \
    }              \
    }
// Inside an op: names of its level.
#define OCTAVO_USE using namespace octavo::OCTAVO_LEVEL

OCTAVO_BEGIN

// As octavo/base/native.py numbers them.
enum Dtype : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

template <class Args>
inline const Args& args(const void* raw) {
    return *static_cast<const Args*>(raw);
}

inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

// Calls body(begin, end) for parts of [0, count), at least `grain` at a time, on the team.
template <class Body>
inline void parallel_for(int64_t count, int64_t grain, const Body& body) {
    team_run(
        count, grain,
        [](void* context, int64_t begin, int64_t end) { (*static_cast<const Body*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

// Calls body(T{}) with the type that a dtype names.
template <class Body>
inline void with_dtype(int64_t dtype, const Body& body) {
    switch (dtype) {
        case FLOAT32: return body(float{});
        case BFLOAT16: return body(bf16{});
        default: return body(f16{});
    }
}

OCTAVO_END
