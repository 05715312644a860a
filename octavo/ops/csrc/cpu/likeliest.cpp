// Every row's largest logit.
// levels: scalar avx2 avx512 neon
#include "choose.h"

OCTAVO_BEGIN

struct LikeliestArgs {
    const float* logits;
    int64_t* ids;
    bool* ok;
    int64_t num_rows, size, row;
};

OCTAVO_END

OP(likeliest) {
    OCTAVO_USE;
    const auto& a = args<LikeliestArgs>(raw);
    parallel_for(a.num_rows, max64(1, 16384 / a.size), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            Peak peak = find_peak(a.logits + row * a.row, a.size);
            a.ids[row] = peak.id;
            a.ok[row] = peak.ok;
        }
    });
}
