// act(gate) · up, and act alone, in float32, rounded once.
#include "gates.h"
#include "parallel.h"

namespace stentor {
namespace {

constexpr int64_t GRAIN = 16384;  // elements below which a second thread does not pay

template <class Act, class T>
void gated(const T* gate_up, T* out, int64_t rows, int64_t width, int64_t stride, int64_t threads) {
    parallel_rows(rows, GRAIN / (width + 1), threads, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const T* gate = gate_up + row * stride;
            const T* up = gate + width;
            T* to = out + row * width;
            int64_t i = 0;
            for (; i + LANES <= width; i += LANES) store(to + i, Act::apply(load(gate + i)) * load(up + i));
            if (i < width) {
                const int64_t n = width - i;
                store_part(to + i, Act::apply(load_part(gate + i, n)) * load_part(up + i, n), n);
            }
        }
    });
}

template <class T>
void gated_by_kind(const T* gate_up, T* out, int64_t rows, int64_t width, int64_t stride, int32_t kind,
                   int64_t threads) {
    if (kind == 0) gated<Silu>(gate_up, out, rows, width, stride, threads);
    if (kind == 1) gated<GeluTanh>(gate_up, out, rows, width, stride, threads);
    if (kind == 2) gated<Gelu>(gate_up, out, rows, width, stride, threads);
    if (kind == 3) gated<Relu2>(gate_up, out, rows, width, stride, threads);
    if (kind == 4) gated<QuickGelu>(gate_up, out, rows, width, stride, threads);
    if (kind == 5) gated<Relu>(gate_up, out, rows, width, stride, threads);
}

template <class Act, class T>
void plain(T* x, int64_t count, int64_t threads) {
    parallel_rows(count, GRAIN, threads, [=](int64_t begin, int64_t end) {
        int64_t i = begin;
        for (; i + LANES <= end; i += LANES) store(x + i, Act::apply(load(x + i)));
        if (i < end) store_part(x + i, Act::apply(load_part(x + i, end - i)), end - i);
    });
}

template <class T>
void plain_by_kind(T* x, int64_t count, int32_t kind, int64_t threads) {
    if (kind == 0) plain<Silu>(x, count, threads);
    if (kind == 1) plain<GeluTanh>(x, count, threads);
    if (kind == 2) plain<Gelu>(x, count, threads);
    if (kind == 3) plain<Relu2>(x, count, threads);
    if (kind == 4) plain<QuickGelu>(x, count, threads);
    if (kind == 5) plain<Relu>(x, count, threads);
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// kind: 0 silu, 1 gelu (tanh form), 2 gelu (error function), 3 relu², 4 quick gelu, 5 relu; `stride` is that of gate_up's rows.
STENTOR_EXPORT void stentor_gated_activation_f32(const float* gate_up, float* out, int64_t rows, int64_t width,
                                                 int64_t stride, int32_t kind, int64_t threads) {
    gated_by_kind(gate_up, out, rows, width, stride, kind, threads);
}

STENTOR_EXPORT void stentor_gated_activation_bf16(const bf16* gate_up, bf16* out, int64_t rows, int64_t width,
                                                  int64_t stride, int32_t kind, int64_t threads) {
    gated_by_kind(gate_up, out, rows, width, stride, kind, threads);
}

// In place.
STENTOR_EXPORT void stentor_activate_f32(float* x, int64_t count, int32_t kind, int64_t threads) {
    plain_by_kind(x, count, kind, threads);
}

STENTOR_EXPORT void stentor_activate_bf16(bf16* x, int64_t count, int32_t kind, int64_t threads) {
    plain_by_kind(x, count, kind, threads);
}
