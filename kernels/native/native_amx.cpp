// Decides which body of tiles runs: asks the system for tiles when the library is loaded.
#include "amx.h"
#include "parallel.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace stentor {
namespace tiles {
namespace {

constexpr int64_t NOT_COMPILED = -1;  // the compiler's target has no tiles

// Linux grants the 8 KiB of a thread's tile state on request. Returns 0, or an errno.
int64_t ask_for_tiles() {
#if defined(STENTOR_AMX)
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 ? 0 : errno;
#else
    return NOT_COMPILED;
#endif
}

const int64_t refusal = ask_for_tiles();
std::atomic<Form> current{refusal == 0 ? Form::HARDWARE : Form::NONE};
std::atomic<int64_t> rows_of[3] = {USUAL_ROWS[0], USUAL_ROWS[1], USUAL_ROWS[2]};

}  // namespace

Form form() { return current.load(std::memory_order_relaxed); }
int64_t from_rows(Weights weights) { return rows_of[(int64_t)weights].load(std::memory_order_relaxed); }

#if defined(STENTOR_EMULATED_TILES)
void refuse(const char* what) {
    std::fprintf(stderr, "tiles: %s\n", what);
    std::abort();
}
#endif

}  // namespace tiles
}  // namespace stentor

using namespace stentor;

STENTOR_EXPORT int64_t stentor_tile_form() { return (int64_t)tiles::form(); }

// Returns why the processor's tiles are not used: 0 if they are, -1 if the compiler's target has none, or the system's
// errno.
STENTOR_EXPORT int64_t stentor_tile_refusal() { return tiles::refusal; }

// Switches to another form; only between calls of kernels. Returns 0, or 1 if this library cannot.
STENTOR_EXPORT int64_t stentor_use_tiles(int64_t wanted) {
    const tiles::Form form = (tiles::Form)wanted;
    bool can = form == tiles::Form::NONE || (form == tiles::Form::HARDWARE && tiles::refusal == 0);
#if defined(STENTOR_EMULATED_TILES)
    can = can || form == tiles::Form::EMULATED;
#endif
    if (can) tiles::current.store(form, std::memory_order_relaxed);
    return can ? 0 : 1;
}

// Makes products with such weights use tiles from `rows` rows on. Returns the limit before.
STENTOR_EXPORT int64_t stentor_use_tiles_from(int64_t weights, int64_t rows) {
    return tiles::rows_of[weights].exchange(rows, std::memory_order_relaxed);
}
