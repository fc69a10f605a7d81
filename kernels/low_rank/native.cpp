// y += scale * (x Aᵀ) Bᵀ for rows that have adapters, each with the matrices of its own; see ../linear/tiles.h.
//
// Rows come sorted by adapter. An item of work is some rows of one: these are gathered, multiplied by all of its A at
// once, and what comes of it by its B, which lies transposed so that lanes are outputs.
#include <algorithm>
#include <cstring>
#include <vector>

#include "../linear/tiles.h"
#include "parallel.h"

namespace stentor {
namespace {

using namespace products;

constexpr int64_t CHUNK = 16;  // rows of an item

// What an adapter adds to some columns: the same in __init__.py.
struct Part {
    const float* up;  // [rank, outputs]
    int64_t rank, outputs, column;
    double scale;
};

// What it adds to a product: the same in __init__.py.
struct Adapter {
    const float* down;  // [ranks, inputs]: the A of all parts
    int64_t ranks;
    const Part* parts;
    int64_t count;
};

// C vectors of outputs from `column` on of one row.
template <int C>
inline void expand(const Part& part, const float* low, float* out, int64_t column) {
    vf acc[C] = {};
    for (int64_t r = 0; r < part.rank; ++r) {
        const vf factor = set1(low[r]);
        const float* up = part.up + r * part.outputs + column;
        for (int c = 0; c < C; ++c) acc[c] = fma(factor, load(up + c * LANES), acc[c]);
    }
    const vf scale = set1((float)part.scale);
    for (int c = 0; c < C; ++c) {
        float* to = out + column + c * LANES;
        store(to, fma(scale, acc[c], load(to)));
    }
}

void expand_row(const Part& part, const float* low, float* out) {
    int64_t column = 0;
    for (; column + 4 * LANES <= part.outputs; column += 4 * LANES) expand<4>(part, low, out, column);
    for (; column + LANES <= part.outputs; column += LANES) expand<1>(part, low, out, column);
    if (const int64_t left = part.outputs - column; left > 0) {
        vf acc = {};
        for (int64_t r = 0; r < part.rank; ++r)
            acc = fma(set1(low[r]), load_part(part.up + r * part.outputs + column, left), acc);
        float* to = out + column;
        store_part(to, fma(set1((float)part.scale), acc, load_part(to, left)), left);
    }
}

void add_rows(const Adapter& adapter, const int64_t* rows, int64_t count, const float* x, int64_t x_stride,
              int64_t inputs, float* y, int64_t y_stride) {
    thread_local std::vector<float> gathered, low;
    gathered.resize((size_t)(count * inputs));
    low.resize((size_t)(count * adapter.ranks));
    for (int64_t i = 0; i < count; ++i)
        std::memcpy(gathered.data() + i * inputs, x + rows[i] * x_stride, (size_t)inputs * sizeof(float));
    const Problem<float> p{gathered.data(), adapter.down, nullptr, low.data(),   count,
                           adapter.ranks,   inputs,       inputs,  inputs, adapter.ranks};
    const Cut each = cut<Single>(p.rows, p.columns, p.inner, 1);
    for (int64_t item = 0; item < each.items(); ++item) multiply_item<Single>(p, each, item);
    for (int64_t i = 0; i < count; ++i) {
        const float* found = low.data() + i * adapter.ranks;
        for (int64_t part = 0; part < adapter.count; ++part) {
            expand_row(adapter.parts[part], found, y + rows[i] * y_stride + adapter.parts[part].column);
            found += adapter.parts[part].rank;
        }
    }
}

}  // namespace
}  // namespace stentor

using namespace stentor;

// `adapters` of `groups`, null for one that adds nothing; the rows of group g are rows[starts[g]] to rows[starts[g + 1]].
STENTOR_EXPORT void stentor_low_rank_f32(float* y, int64_t y_stride, const float* x, int64_t x_stride, int64_t inputs,
                                         const Adapter* const* adapters, int64_t groups, const int64_t* rows,
                                         const int64_t* starts, int64_t threads) {
    struct Item {
        const Adapter* adapter;
        int64_t first, count;
    };
    std::vector<Item> items;
    for (int64_t g = 0; g < groups; ++g)
        for (int64_t row = starts[g]; adapters[g] && row < starts[g + 1]; row += CHUNK)
            items.push_back({adapters[g], row, std::min(CHUNK, starts[g + 1] - row)});
    parallel_for((int64_t)items.size(), threads, [&](int64_t item) {
        const Item& each = items[(size_t)item];
        add_rows(*each.adapter, rows + each.first, each.count, x, x_stride, inputs, y, y_stride);
    });
}
