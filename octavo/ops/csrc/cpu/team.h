// One team of threads for all kernels of the process, and each thread's own scratch memory.
//
// Compiled once, for any processor. What kernels do is in pieces that may be done in any order by any thread: a result never
// depends on how many threads there are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Does piece numbers [begin, end) of some work.
using Work = void (*)(void* context, int64_t begin, int64_t end);

// Has `work` done for all of [0, count), at least `grain` pieces at a time. Returns when all are done. A kernel must not call
// it from inside `work`. Few pieces (count <= grain) are done by the caller alone.
void team_run(int64_t count, int64_t grain, Work work, void* context);

// Threads that take part, the caller included.
int team_size();

// Memory of the calling thread alone, aligned to 64 bytes and good until it asks again with the same slot, 0 to 3.
void* scratch(int slot, size_t num_bytes);

}  // namespace octavo

extern "C" {
// How many threads take part from now on, at least 1.
void octavo_team_resize(int64_t num_threads);

struct OctavoCall {
    void (*function)(const void* args);
    const void* args;
};
// Makes calls one after another.
void octavo_replay(const OctavoCall* calls, int64_t count);
}
