// The team of threads: pieces of work are taken off a shared counter; who finds none spins shortly, then sleeps.
//
// Pieces are taken, not given, and the caller waits for pieces, not for threads: where another program has one of the cores,
// the others do more, and a thread that does not run holds nobody up. Threads are not pinned for the same reason.
#include "team.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace octavo {
namespace {

// About 20 microseconds: longer than the gap between two kernels of a step, shorter than anybody would notice.
constexpr int SPINS = 400;
// Work is cut so that each thread takes about so many pieces.
constexpr int64_t TURNS = 4;
constexpr uint64_t LEFT = 0xffffffff;

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

class Team {
  public:
    void resize(int64_t num_threads) {
        std::lock_guard<std::mutex> one_caller(callers_);
        stop();
        size_ = num_threads < 1 ? 1 : static_cast<int>(num_threads);
    }

    int size() const { return size_; }

    void run(int64_t count, int64_t grain, Work work, void* context) {
        if (count <= 0) return;
        if (count <= grain || size_ == 1) return work(context, 0, count);
        std::lock_guard<std::mutex> one_caller(callers_);
        if (threads_.empty()) start();
        int64_t step = count / (size_ * TURNS);
        if (step < grain) step = grain;
        int64_t pieces = (count + step - 1) / step;
        work_ = work;
        context_ = context;
        count_ = count;
        step_ = step;
        done_ = 0;
        job_++;
        tickets_ = job_ << 32 | static_cast<uint64_t>(pieces);
        if (sleepers_ > 0) {
            std::lock_guard<std::mutex> lock(sleep_);
            wake_.notify_all();
        }
        while (take_piece()) {
        }
        for (int spin = 0; done_.load(std::memory_order_acquire) != pieces; spin++) {
            if (spin < SPINS * 4) {
                relax();
            } else {
                std::this_thread::yield();
            }
        }
    }

    // A child process has no thread but the one that forked.
    void forget_threads() {
        new (&callers_) std::mutex;
        new (&sleep_) std::mutex;
        new (&wake_) std::condition_variable;
        new (&threads_) std::vector<std::thread>;
        sleepers_ = 0;
        tickets_ = 0;
    }

  private:
    bool take_piece() {
        uint64_t ticket = tickets_.load(std::memory_order_acquire);
        while ((ticket & LEFT) != 0) {
            // They may be those of a later job by now; then the ticket has changed too and is not ours.
            Work work = work_.load(std::memory_order_relaxed);
            void* context = context_.load(std::memory_order_relaxed);
            int64_t count = count_.load(std::memory_order_relaxed), step = step_.load(std::memory_order_relaxed);
            if (tickets_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) {
                int64_t pieces = (count + step - 1) / step, begin = (pieces - static_cast<int64_t>(ticket & LEFT)) * step;
                work(context, begin, begin + step < count ? begin + step : count);
                done_.fetch_add(1, std::memory_order_release);
                return true;
            }
        }
        return false;
    }

    bool has_pieces() const { return (tickets_.load() & LEFT) != 0; }

    void member() {
        while (!stopping_) {
            if (take_piece()) continue;
            int spin = 0;
            while (spin < SPINS && !has_pieces()) {
                relax();
                spin++;
            }
            if (spin < SPINS) continue;
            std::unique_lock<std::mutex> lock(sleep_);
            sleepers_++;
            wake_.wait(lock, [this] { return stopping_ || has_pieces(); });
            sleepers_--;
        }
    }

    void start() {
        stopping_ = false;
        for (int i = 1; i < size_; i++) threads_.emplace_back([this] { member(); });
    }

    void stop() {
        {
            std::lock_guard<std::mutex> lock(sleep_);
            stopping_ = true;
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
        threads_.clear();
    }

    std::mutex callers_, sleep_;
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
    int size_ = 1;
    uint64_t job_ = 0;
    std::atomic<bool> stopping_{false};
    std::atomic<int> sleepers_{0};
    std::atomic<Work> work_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<int64_t> count_{0}, step_{1};
    // Number of the job, and below it the pieces that nobody has taken.
    alignas(64) std::atomic<uint64_t> tickets_{0};
    alignas(64) std::atomic<int64_t> done_{0};
};

// Never destroyed: threads may outlive the end of main.
Team& team() {
    static Team* one = [] {
        pthread_atfork(nullptr, nullptr, [] { team().forget_threads(); });
        return new Team;
    }();
    return *one;
}

struct Scratch {
    void* memory[4] = {};
    size_t size[4] = {};
    ~Scratch() {
        for (void* one : memory) std::free(one);
    }
};

}  // namespace

void team_run(int64_t count, int64_t grain, Work work, void* context) { team().run(count, grain, work, context); }

int team_size() { return team().size(); }

void* scratch(int slot, size_t num_bytes) {
    thread_local Scratch own;
    if (own.size[slot] < num_bytes) {
        std::free(own.memory[slot]);
        own.size[slot] = (num_bytes + 4095) / 4096 * 4096;
        own.memory[slot] = std::aligned_alloc(64, own.size[slot]);
    }
    return own.memory[slot];
}

}  // namespace octavo

extern "C" __attribute__((visibility("default"))) void octavo_team_resize(int64_t num_threads) {
    octavo::team().resize(num_threads);
}

extern "C" __attribute__((visibility("default"))) void octavo_replay(const OctavoCall* calls, int64_t count) {
    for (int64_t i = 0; i < count; i++) calls[i].function(calls[i].args);
}
