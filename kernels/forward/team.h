// A team of threads that run one list of phases together, without a fork and a join for each.
//
// Every thread runs the same program. A phase is a loop over items. Each thread begins with its own range, so that
// it streams through memory in order, and then takes items from the others' ranges. It enters the next phase when
// all items of this one are done. A descheduled thread delays the others only by the item that it had begun. If it
// comes late, it finds the phases it missed done and passes through them.
#pragma once

#include "parallel.h"

#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <memory>

namespace stentor {

class Team {
   public:
    Team(int64_t threads, int64_t phases) : threads_(threads), phases_(phases) {
        if (threads > 1) state_.reset(new Line[(size_t)(phases * (threads + 1))]());
    }

    // A thread's position in the program.
    class Walk {
       public:
        Walk(Team& team, int64_t me) : team_(team), me_(me) {}

        // Runs the next phase: body(item) once for each item of [0, items), on any thread. More phases than the team
        // was made for end the process: there is no memory for them, and other threads may be waiting.
        template <class Body>
        void phase(int64_t items, const Body& body) {
            const int64_t threads = team_.threads_;
            const auto call = [&](int64_t item) STENTOR_ONCE { body(item); };
            if (at_ >= team_.phases_) std::abort();
            if (threads == 1) {
                ++at_;
                for (int64_t item = 0; item < items; ++item) call(item);
                return;
            }
            Line* const cursors = team_.state_.get() + at_++ * (threads + 1);
            std::atomic<int64_t>& done = cursors[threads].value;
            int64_t mine = 0;
            for (int64_t i = 0; i < threads; ++i) {
                const int64_t owner = (me_ + i) % threads;
                const int64_t begin = items * owner / threads, end = items * (owner + 1) / threads;
                std::atomic<int64_t>& cursor = cursors[owner].value;
                while (begin + cursor.load(std::memory_order_relaxed) < end) {
                    const int64_t item = begin + cursor.fetch_add(1, std::memory_order_relaxed);
                    if (item >= end) break;
                    call(item);
                    ++mine;
                }
            }
            if (mine) done.fetch_add(mine, std::memory_order_acq_rel);
            for (int64_t looks = 0; done.load(std::memory_order_acquire) != items; ++looks) {
                if (looks < LOOKS)
                    relax();
                else
                    sched_yield();
            }
        }

       private:
        Team& team_;
        const int64_t me_;
        int64_t at_ = 0;
    };

    // Calls program(walk) on every thread; `phases` of the constructor bounds how many phases it may run. An exception
    // from a program ends the process, because other threads may be in the middle of it.
    template <class Program>
    void run(const Program& program) noexcept {
        parallel_for(threads_, threads_, [&](int64_t me) {
            Walk walk(*this, me);
            program(walk);
        });
    }

   private:
    struct alignas(64) Line {
        std::atomic<int64_t> value{0};
    };
    static constexpr int64_t LOOKS = 4096;

    const int64_t threads_, phases_;
    std::unique_ptr<Line[]> state_;
};

}  // namespace stentor
