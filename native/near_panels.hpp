// Which panels of points are near enough to some rows for their kernel values to count.
//
// A value less than 2^-64 of the variance (2^-34 in single precision) is less than the rounding of the entries that
// count, and so is its derivative; tiles that hold no other values are left out. They are found by the boxes around the
// points of each panel, so that the points should be in an order in which neighbours are together.
#pragma once

#include "blocking.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

// Decay exponent in base 2 from which on (1 + u + u^2 / 3) 2^-a and (u^3 + u^2) / 3 2^-a, u = a ln 2, are negligible.
template <class T>
constexpr double kLongestDecay = sizeof(T) == sizeof(double) ? 75 : 43;

// Squared distance of that exponent.
template <class T>
double farthest_square(Profile profile) {
    const double length = kLongestDecay<T> / decay_rate(profile);
    return profile == Profile::rbf ? length : length * length;
}

// The least and the largest value of each feature among some points, one box after the other.
template <class T>
struct Boxes {
    T* data;
    int64_t features;

    KERNELCG_INLINE Boxes(Carver& carver, int64_t count, int64_t features_)
        : data(carver.take<T>(count * 2 * features_)), features(features_) {}

    KERNELCG_INLINE T* at(int64_t index) const { return data + index * 2 * features; }

    // Around the points of one panel.
    KERNELCG_INLINE void enclose(int64_t index, const Panels<T, const T>& points) const {
        const int64_t present = smaller(points.points - index * kPanel<T>, int64_t(kPanel<T>));
        const T* values = points.panel(index);
        T* const box = at(index);
        for (int64_t r = 0; r < features; ++r, values += kPanel<T>) {
            box[2 * r] = box[2 * r + 1] = values[0];
            for (int64_t i = 1; i < present; ++i) {
                box[2 * r] = smaller(box[2 * r], values[i]);
                box[2 * r + 1] = larger(box[2 * r + 1], values[i]);
            }
        }
    }

    // Around some of the boxes of others.
    KERNELCG_INLINE void unite(int64_t index, const Boxes& others, Range some) const {
        T* const box = at(index);
        for (int64_t r = 0; r < 2 * features; ++r) box[r] = others.at(some.begin)[r];
        for (int64_t other = some.begin + 1; other < some.end; ++other)
            for (int64_t r = 0; r < features; ++r) {
                box[2 * r] = smaller(box[2 * r], others.at(other)[2 * r]);
                box[2 * r + 1] = larger(box[2 * r + 1], others.at(other)[2 * r + 1]);
            }
    }
};

// Whether all points of two boxes are farther apart than that.
template <class T>
KERNELCG_INLINE bool are_farther_apart(const T* a, const T* b, int64_t features, T square) {
    T sum = 0;
    for (int64_t r = 0; r < features; ++r) {
        const T gap = larger(larger(a[2 * r] - b[2 * r + 1], b[2 * r] - a[2 * r + 1]), T(0));
        sum += gap * gap;
    }
    return sum > square;
}

// Boxes around the panels of rows and columns, around the chunks of columns, and around the blocks of rows.
template <class T>
struct NearPanels {
    bool everything;  // no pair is left out, and there are no boxes
    T square;
    Boxes<T> rows, columns, chunks, blocks;

    KERNELCG_INLINE NearPanels(Carver& carver, const Blocking& b)
        : everything(true), square(0),
          rows(carver, b.size.symmetric ? 0 : panel_count<T>(b.size.rows), b.size.features),
          columns(carver, panel_count<T>(b.size.columns), b.size.features),
          chunks(carver, b.chunks, b.size.features), blocks(carver, b.blocks, b.size.features) {}

    void enclose(const Blocking& b, const Panels<T, const T>& x, const Panels<T, const T>& y, T farthest) {
        everything = false;
        square = farthest;
        if (b.size.symmetric) rows = columns;
        for (int64_t p = 0; p < y.count(); ++p) columns.enclose(p, y);
        if (!b.size.symmetric)
            for (int64_t p = 0; p < x.count(); ++p) rows.enclose(p, x);
        for (int64_t chunk = 0; chunk < b.chunks; ++chunk) {
            const int64_t begin = chunk * b.panels_per_chunk;
            chunks.unite(chunk, columns, {begin, smaller(begin + b.panels_per_chunk, y.count())});
        }
        for (int64_t block = 0; block < b.blocks; ++block) {
            const Range of_block = rows_of_block(b, block);
            blocks.unite(block, rows, {of_block.begin / kPanel<T>, (of_block.end - 1) / kPanel<T> + 1});
        }
    }

    KERNELCG_INLINE bool has_any(int64_t block, int64_t chunk) const {
        return everything || !are_farther_apart(blocks.at(block), chunks.at(chunk), columns.features, square);
    }

    // Calls visit(panels) for the runs of panels, of those given, that are near the tile that begins at this row.
    template <class Visit>
    KERNELCG_INLINE void for_each_run(int64_t row, Range panels, const Visit& visit) const {
        if (everything) return visit(panels);
        const T* const box = rows.at(row / kPanel<T>);
        for (int64_t begin = panels.begin, p = begin; p <= panels.end; ++p) {
            if (p < panels.end && !are_farther_apart(box, columns.at(p), columns.features, square)) continue;
            if (p > begin) visit(Range{begin, p});
            begin = p + 1;
        }
    }
};

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
