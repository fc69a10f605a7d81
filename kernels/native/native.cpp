// The pool of compute threads. Unlike a fork-join runtime, a loop never waits for a helper that has
// not begun: the caller takes items itself and only waits for those that a helper has claimed. On a
// machine whose cores are shared with other processes a late helper then costs nothing, where a
// barrier would cost a time slice in every one of the hundred loops of a step.
//
// One word says which loop runs and how far it has come: (generation << 32) | next item. A thread
// claims an item by raising the word with compare-and-swap. The fields of a loop (call, body, items,
// helpers) are written after the word has been closed (item = all ones) and before it is opened, and
// stay until all items are done: a claim that succeeds proves that they were read whole.
//
// A process that forks loses its helpers and needs none: nobody claims but the caller.
//
// Helpers wait for the next loop by a bounded spin, longer than the gaps within a step, and then in
// a futex, so that an idle server costs no CPU.
#include "parallel.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

namespace stentor {
namespace {

constexpr int64_t SPIN_NANOSECONDS = 50'000;
constexpr int SPINS_PER_LOOK = 64;
constexpr uint64_t ITEM_MASK = 0xFFFF'FFFF;

inline int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

inline void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

thread_local bool inside = false;

class Pool {
   public:
    void run(int64_t items, int64_t threads, ItemFunction call, const void* body) {
        // a nested loop, or one beside another thread's, runs in its caller
        std::unique_lock<std::mutex> turn(turn_, std::defer_lock);
        if (inside || items >= static_cast<int64_t>(ITEM_MASK) || !turn.try_lock()) {
            for (int64_t item = 0; item < items; ++item) call(body, item);
            return;
        }
        grow(threads - 1);
        ++generation_;
        // A helper that still looks at the last loop must not claim an item with this loop's
        // fields.
        progress_.store(static_cast<uint64_t>(generation_) << 32 | ITEM_MASK);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        call_.store(call, std::memory_order_relaxed);
        body_.store(body, std::memory_order_relaxed);
        items_.store(items, std::memory_order_relaxed);
        helpers_.store(threads - 1, std::memory_order_relaxed);
        left_.store(items, std::memory_order_relaxed);
        progress_.store(static_cast<uint64_t>(generation_) << 32);
        bell_.store(generation_);
        // With more helpers a smaller number might wake only ones that this loop does not use.
        const int64_t woken = started_ > threads - 1 ? INT32_MAX : threads - 1;
        if (sleepers_.load() > 0) futex(bell_, FUTEX_WAKE_PRIVATE, static_cast<uint32_t>(woken));
        inside = true;
        take_items(INT64_MAX);
        inside = false;
        for (int64_t looks = 0; left_.load(std::memory_order_acquire) != 0; ++looks) {
            // a helper was descheduled in the middle of an item: yield the core to it
            if (looks < SPINS_PER_LOOK * 16)
                relax();
            else
                sched_yield();
        }
    }

   private:
    // Runs items of the current loop until none is left to claim. `helper` is INT64_MAX for the caller. An exception
    // from an item ends the process: unwinding the caller would free data that other threads still read.
    void take_items(int64_t helper) noexcept {
        uint64_t seen = progress_.load(std::memory_order_acquire);
        for (;;) {
            const ItemFunction call = call_.load(std::memory_order_relaxed);
            const void* body = body_.load(std::memory_order_relaxed);
            const int64_t items = items_.load(std::memory_order_relaxed);
            const int64_t helpers = helpers_.load(std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_acquire);
            const int64_t item = static_cast<int64_t>(seen & ITEM_MASK);
            if (item >= items || (helper != INT64_MAX && helper >= helpers)) return;
            if (!progress_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
            call(body, item);
            left_.fetch_sub(1, std::memory_order_acq_rel);
            seen = progress_.load(std::memory_order_acquire);
        }
    }

    void help(int64_t helper) {
        inside = true;
        uint32_t last = 0;
        for (;;) {
            last = wait_for_loop(last);
            take_items(helper);
        }
    }

    // Waits for the generation after `last` and returns it.
    uint32_t wait_for_loop(uint32_t last) {
        const int64_t deadline = now() + SPIN_NANOSECONDS;
        do {
            for (int i = 0; i < SPINS_PER_LOOK; ++i) {
                const uint32_t generation = bell_.load(std::memory_order_acquire);
                if (generation != last) return generation;
                relax();
            }
        } while (now() < deadline);
        sleepers_.fetch_add(1);
        uint32_t generation;
        while ((generation = bell_.load()) == last) futex(bell_, FUTEX_WAIT_PRIVATE, last);
        sleepers_.fetch_sub(1);
        return generation;
    }

    void grow(int64_t helpers) {
        while (started_ < helpers && !refused_) {
            try {
                std::thread([this, helper = started_] { help(helper); }).detach();
            } catch (const std::exception&) {  // system_error, or bad_alloc for what the thread begins with
                refused_ = true;  // no more threads available: the caller does their work, and does not ask again
                return;
            }
            ++started_;
        }
    }

    std::mutex turn_;
    int64_t started_ = 0;
    bool refused_ = false;
    uint32_t generation_ = 0;
    alignas(64) std::atomic<uint64_t> progress_{0};
    alignas(64) std::atomic<int64_t> left_{0};
    alignas(64) std::atomic<uint32_t> bell_{0};
    std::atomic<int> sleepers_{0};
    alignas(64) std::atomic<ItemFunction> call_{nullptr};
    std::atomic<const void*> body_{nullptr};
    std::atomic<int64_t> items_{0};
    std::atomic<int64_t> helpers_{0};
};

// Never destroyed: helpers may still wait in it when the process ends.
Pool& pool() {
    static Pool* const instance = new Pool;
    return *instance;
}

}  // namespace

void run_parallel(int64_t items, int64_t threads, ItemFunction call, const void* body) {
    pool().run(items, threads, call, body);
}

}  // namespace stentor
