// The largest logit of a row, for who takes it and for who draws in relation to it.
#pragma once

#include "vector.h"

OCTAVO_BEGIN

struct Peak {
    float value;
    int64_t id;
    // Whether it is a number, and so are all the others.
    bool ok;
};

inline Peak find_peak(const float* logits, int64_t size) {
    Floats peaks = broadcast(-INFINITY);
    int64_t whole = size - size % Floats::WIDTH, id = -1;
    for (int64_t i = 0; i < whole; i += Floats::WIDTH) peaks = larger(peaks, load(logits + i));
    float peak = maximum(peaks);
    for (int64_t i = whole; i < size; i++) peak = logits[i] > peak ? logits[i] : peak;
    bool ok = peak > -INFINITY && peak < INFINITY;
    // A NaN may have hidden larger numbers, but is itself not smaller than anything.
    for (int64_t first = 0; first < size; first += 64) {
        int64_t last = min64(size, first + 64);
        int found = 0;
        for (int64_t i = first; i < last; i++) found |= !(logits[i] < peak);
        for (int64_t i = first; found && i < last; i++) {
            if (id < 0 && logits[i] == peak) id = i;
            if (logits[i] != logits[i]) ok = false;
        }
    }
    // What does not count is a token all the same.
    return {peak, id < 0 ? 0 : id, ok};
}

OCTAVO_END
