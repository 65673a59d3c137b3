// Products of a strip of kernel values with the vectors, in both directions:
//
//   along rows:    row_sums[i][q]    += sum_j strip[i][j] v[j][q]   (lanes stay separate until the block is done)
//   along columns: column_sums[j][q] += sum_i strip[i][j] v[i][q]   (the transposed use, symmetric matrices only)
//
// A group of vectors is treated at once, so that each loaded kernel value serves several multiply-adds.
#pragma once

#include "strip.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

// Register budget of the accumulators, and the largest group of vectors that fits it.
#if KERNELCG_VECTOR_BYTES == 64
constexpr int kAccumulators = 24;
constexpr int kLargestGroup = 6;
#else
constexpr int kAccumulators = 8;
constexpr int kLargestGroup = 4;
#endif

// Rows treated together for a group of the given size: as many as the budget allows, all or half of the strip.
constexpr int rows_at_once(int group) {
    return kTileRows * group <= kAccumulators ? kTileRows : kTileRows / 2;
}

// One strip and what it is multiplied with. Row pointers are Panels::point of the first row, column pointers
// Panels::panel of the first panel; row_sums is [row][vector][lane]. row_vectors and column_sums belong to the use
// along columns.
template <class T>
struct StripProduct {
    int64_t panels;
    int64_t features;
    int64_t width;  // number of vectors
    const T* row_features;
    const T* column_features;
    const T* row_vectors;
    const T* column_vectors;
    T* row_sums;
    T* column_sums;
    T* strip;  // buffer for the kernel values
};

template <class T, int Rows, int Group>
KERNELCG_INLINE void add_along_some_rows(const StripProduct<T>& p, int first_row, int64_t first_vector) {
    T* const sums = p.row_sums + (first_row * p.width + first_vector) * kLanes<T>;
    Vec<T> sum[Rows][Group];
    KERNELCG_UNROLL for (int i = 0; i < Rows; ++i)
        KERNELCG_UNROLL for (int q = 0; q < Group; ++q) sum[i][q] = load(sums + (i * p.width + q) * kLanes<T>);
    const T* strip = p.strip + first_row * kStripColumns;
    const T* vectors = p.column_vectors + first_vector * kPanel<T>;
    for (int64_t panel = 0; panel < p.panels; ++panel, strip += kPanel<T>, vectors += p.width * kPanel<T>) {
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) {
            Vec<T> vector[Group];
            KERNELCG_UNROLL for (int q = 0; q < Group; ++q) vector[q] = load(vectors + q * kPanel<T> + v * kLanes<T>);
            KERNELCG_UNROLL for (int i = 0; i < Rows; ++i) {
                const Vec<T> value = load(strip + i * kStripColumns + v * kLanes<T>);
                KERNELCG_UNROLL for (int q = 0; q < Group; ++q) sum[i][q] += value * vector[q];
            }
        }
    }
    KERNELCG_UNROLL for (int i = 0; i < Rows; ++i)
        KERNELCG_UNROLL for (int q = 0; q < Group; ++q) store(sums + (i * p.width + q) * kLanes<T>, sum[i][q]);
}

template <class T, int Group>
KERNELCG_INLINE void add_along_rows(const StripProduct<T>& p, int64_t first_vector) {
    constexpr int rows = rows_at_once(Group);
    for (int first_row = 0; first_row < kTileRows; first_row += rows)
        add_along_some_rows<T, rows, Group>(p, first_row, first_vector);
}

template <class T, int Group>
KERNELCG_INLINE void add_along_columns(const StripProduct<T>& p, int64_t first_vector) {
    const T* strip = p.strip;
    const T* const row_vectors = p.row_vectors + first_vector * kPanel<T>;
    T* sums = p.column_sums + first_vector * kPanel<T>;
    for (int64_t panel = 0; panel < p.panels; ++panel, strip += kPanel<T>, sums += p.width * kPanel<T>) {
        Vec<T> sum[Group][kTileVectors];
        KERNELCG_UNROLL for (int q = 0; q < Group; ++q)
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
                sum[q][v] = load(sums + q * kPanel<T> + v * kLanes<T>);
        KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i) {
            Vec<T> value[kTileVectors];
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
                value[v] = load(strip + i * kStripColumns + v * kLanes<T>);
            KERNELCG_UNROLL for (int q = 0; q < Group; ++q) {
                const Vec<T> factor = broadcast(row_vectors[q * kPanel<T> + i]);
                KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) sum[q][v] += value[v] * factor;
            }
        }
        KERNELCG_UNROLL for (int q = 0; q < Group; ++q)
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
                store(sums + q * kPanel<T> + v * kLanes<T>, sum[q][v]);
    }
}

template <class T, int Group, bool Symmetric>
__attribute__((noinline)) void add_group(const StripProduct<T>& p, int64_t first_vector) {
    add_along_rows<T, Group>(p, first_vector);
    if constexpr (Symmetric) add_along_columns<T, Group>(p, first_vector);
}

// Calls add_group with a compile-time group size.
template <class T, bool Symmetric, int Group = kLargestGroup>
KERNELCG_INLINE void add_group_of(int64_t group, const StripProduct<T>& p, int64_t first_vector) {
    if constexpr (Group > 1) {
        if (group < Group) return add_group_of<T, Symmetric, Group - 1>(group, p, first_vector);
    }
    add_group<T, Group, Symmetric>(p, first_vector);
}

// The strip in the buffer times all vectors, in groups of nearly equal size.
template <class T, bool Symmetric>
void add_buffered_product(const StripProduct<T>& p) {
    const int64_t groups = divide_up(p.width, kLargestGroup);
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = p.width * g / groups;
        const int64_t end = p.width * (g + 1) / groups;
        add_group_of<T, Symmetric>(end - begin, p, begin);
    }
}

// Kernel values and product in one go for a single vector. The values stay in registers: writing them to the buffer
// and reading them back for two multiply-adds each would cost 15 to 20 % of the time at few features. (With more
// vectors the sums no longer fit the registers.)
template <Profile P, class T, bool Symmetric>
__attribute__((noinline)) void add_product_with_single_vector(const StripProduct<T>& p) {
    const T* features = p.column_features;
    const T* vector = p.column_vectors;
    T* column_sums = p.column_sums;
    for (int64_t panel = 0; panel < p.panels; ++panel) {
        Tile<T, kTileRows> tile;
        squared_distances<T, kTileRows>(p.row_features, features, p.features, tile);
        Vec<T> column_sum[kTileVectors];
        if constexpr (Symmetric)
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) column_sum[v] = load(column_sums + v * kLanes<T>);
        KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i) {
            Vec<T> row_sum = load(p.row_sums + i * kLanes<T>);
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) {
                const Vec<T> value = kernel_value<P, T>(tile[i][v]);
                row_sum += value * load(vector + v * kLanes<T>);
                if constexpr (Symmetric) column_sum[v] += value * broadcast(p.row_vectors[i]);
            }
            store(p.row_sums + i * kLanes<T>, row_sum);
        }
        if constexpr (Symmetric) {
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) store(column_sums + v * kLanes<T>, column_sum[v]);
            column_sums += kPanel<T>;
        }
        features += p.features * kPanel<T>;
        vector += kPanel<T>;
    }
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
