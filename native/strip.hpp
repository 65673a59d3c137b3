// Kernel values of a strip: a few rows against a range of column panels, written to a small buffer that stays in the
// first-level cache until the products with the vectors have used it.
#pragma once

#include "bits.hpp"
#include "packing.hpp"
#include "profiles.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

// Columns of a strip at most, and the distance between its rows in memory. A multiple of every panel width.
constexpr int kStripColumns = 384;

template <class T>
constexpr int kStripPanels = kStripColumns / kPanel<T>;

template <class T>
constexpr int kStripSize = kTileRows * kStripColumns;

template <class T, int Rows>
using Tile = Vec<T>[Rows][kTileVectors];

// tile = |x_i - x_j|^2 for Rows points i against the points j of one panel. Direct differences: the expansion
// |x|^2 + |y|^2 - 2xy is a little cheaper for many features (20 to 27 % at d = 57) but loses up to all digits of a
// float on data that spread over many lengthscales.
template <class T, int Rows>
KERNELCG_INLINE void squared_distances(const T* rows, const T* panel, int64_t features, Tile<T, Rows>& tile) {
    KERNELCG_UNROLL for (int i = 0; i < Rows; ++i)
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) tile[i][v] = Vec<T>{};
    for (int64_t feature = 0; feature < features; ++feature, rows += kPanel<T>, panel += kPanel<T>) {
        Vec<T> columns[kTileVectors];
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) columns[v] = load(panel + v * kLanes<T>);
        KERNELCG_UNROLL for (int i = 0; i < Rows; ++i) {
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) {
                const Vec<T> difference = subtract_broadcast(columns[v], rows + i);
                tile[i][v] += difference * difference;
            }
        }
    }
}

// strip[i][c] = k(row i, column c) for Rows points (rows: Panels::point of the first) against `panels` panels.
template <Profile P, class T, int Rows>
__attribute__((noinline)) void fill_strip(const T* rows, const T* panel, int64_t features, int64_t panels, T* strip) {
    if constexpr (P == Profile::tanimoto)
        fill_tanimoto<T, Rows>(rows, panel, features, panels, kStripColumns, strip);
    else
        for (int64_t p = 0; p < panels; ++p, panel += features * kPanel<T>, strip += kPanel<T>) {
            Tile<T, Rows> tile;
            squared_distances<T, Rows>(rows, panel, features, tile);
            KERNELCG_UNROLL for (int i = 0; i < Rows; ++i)
                KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
                    store(strip + i * kStripColumns + v * kLanes<T>, kernel_value<P, T>(tile[i][v]));
        }
}

// For a symmetric matrix each pair i < j is used once, in both directions. Of a buffer whose row r and column c are
// the points first_row + r and first_column + c, zero what lies left of the diagonal and halve the diagonal (it is
// used twice as well). Entries far right of the diagonal are not touched.
template <class T>
KERNELCG_INLINE void keep_upper_triangle(T* buffer, int64_t stride, int64_t width, int64_t first_row,
                                         int64_t first_column) {
    for (int r = 0; r < kTileRows; ++r, buffer += stride) {
        const int64_t diagonal = first_row + r - first_column;
        for (int64_t c = 0; c < smaller(diagonal, width); ++c) buffer[c] = T(0);
        if (diagonal < width) buffer[diagonal] *= T(0.5);
    }
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
