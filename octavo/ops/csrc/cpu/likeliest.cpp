// Every row's largest logit.
// levels: scalar avx2 avx512 neon
#include "vector.h"

OCTAVO_BEGIN

struct LikeliestArgs {
    const float* logits;
    int64_t* ids;
    bool* ok;
    int64_t num_rows, size, row;
};

inline void likeliest_row(const float* logits, int64_t size, int64_t* id, bool* ok) {
    Floats peaks = broadcast(-INFINITY);
    int64_t whole = size - size % Floats::WIDTH;
    for (int64_t i = 0; i < whole; i += Floats::WIDTH) peaks = larger(peaks, load(logits + i));
    float peak = maximum(peaks);
    for (int64_t i = whole; i < size; i++) peak = logits[i] > peak ? logits[i] : peak;
    // A NaN may have hidden larger numbers, but is itself not smaller than anything.
    *id = -1;
    *ok = peak > -INFINITY && peak < INFINITY;
    for (int64_t first = 0; first < size; first += 64) {
        int64_t last = min64(size, first + 64);
        int found = 0;
        for (int64_t i = first; i < last; i++) found |= !(logits[i] < peak);
        for (int64_t i = first; found && i < last; i++) {
            if (*id < 0 && logits[i] == peak) *id = i;
            if (logits[i] != logits[i]) *ok = false;
        }
    }
    // What does not count is a token all the same.
    if (*id < 0) *id = 0;
}

OCTAVO_END

OP(likeliest) {
    OCTAVO_USE;
    const auto& a = args<LikeliestArgs>(raw);
    parallel_for(a.num_rows, max64(1, 16384 / a.size), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) likeliest_row(a.logits + row * a.row, a.size, a.ids + row, a.ok + row);
    });
}
