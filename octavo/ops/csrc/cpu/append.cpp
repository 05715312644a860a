// Chosen tokens are added to their sequences.
// levels: scalar
#include "kernel.h"

OCTAVO_BEGIN

struct AppendArgs {
    int32_t* history;
    int64_t* lengths;
    const int64_t *slots, *positions, *ids;
    const bool* ok;
    int64_t* chosen;
    int64_t num_rows, num_slots, longest;
};

OCTAVO_END

OP(append) {
    OCTAVO_USE;
    const auto& a = args<AppendArgs>(raw);
    for (int64_t row = 0; row < a.num_rows; row++) {
        a.chosen[row] = a.ids[row];
        a.chosen[a.num_rows + row] = a.ok[row];
        int64_t slot = a.slots[row], position = a.positions[row];
        if (!a.ok[row] || position >= a.longest || slot == a.num_slots - 1) continue;
        a.history[slot * a.longest + position] = static_cast<int32_t>(a.ids[row]);
        a.lengths[slot] = position + 1;
    }
}
