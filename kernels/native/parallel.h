// One parallel loop for all kernels: items are handed out one after another, so that a slow one
// does not delay the others. Every item is computed by one thread, whichever it is.
#pragma once

#include <cstdint>

#define STENTOR_EXPORT extern "C" __attribute__((visibility("default")))

namespace stentor {

// Tells the processor that the thread is spinning.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

using ItemFunction = void (*)(const void* body, int64_t item);

// Runs items [0, items) on the caller and up to threads - 1 helpers. Defined in native.cpp.
void run_parallel(int64_t items, int64_t threads, ItemFunction call, const void* body);

// Keeps a body that two loops call from being compiled into both: many a kernel is all in there.
#define STENTOR_ONCE __attribute__((noinline))

// Calls body(item) for each item of [0, items). `threads` is an upper bound. At most one item, or
// one thread, runs in the caller alone.
template <class Body>
inline void parallel_for(int64_t items, int64_t threads, const Body& body) {
    const auto call = [](const void* b, int64_t item) STENTOR_ONCE { (*static_cast<const Body*>(b))(item); };
    if (threads <= 1 || items <= 1) {
        for (int64_t item = 0; item < items; ++item) call(&body, item);
        return;
    }
    run_parallel(items, threads, call, &body);
}

// Like parallel_for over rows in chunks: body(begin, end). Below `grain` rows a second thread costs
// more than it gains.
template <class Body>
inline void parallel_rows(int64_t rows, int64_t grain, int64_t threads, const Body& body) {
    if (grain < 1) grain = 1;
    const int64_t chunks = (rows + grain - 1) / grain;
    parallel_for(chunks, threads, [&](int64_t chunk) {
        const int64_t begin = chunk * grain;
        body(begin, begin + grain < rows ? begin + grain : rows);
    });
}

}  // namespace stentor
