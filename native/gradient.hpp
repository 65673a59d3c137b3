// Lengthscale gradient of sum_ij M_ij k_ij with M = left rightᵀ, for all features in one pass and without storing M.
// A symmetric matrix of weights, where there is one, is added to M.
//
// Per register tile: squared distances, then the tile of M (a small matrix product of the packed left and right
// vectors), then both combined. For one lengthscale per feature a second pass over the features follows, with three
// operations per pair and feature where the distances need two: measured 1.0 to 2.0 products with 16 vectors (4 to 57
// features), up to 2.8 products with a single one. A shared lengthscale needs no second pass: 0.9 to 1.3 products.
#pragma once

#include <cstring>

#include "near_panels.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

template <class T>
constexpr int kTileSize = kTileRows * kPanel<T>;

// The value first, then the derivatives: enough for every mode.
KERNELCG_INLINE int64_t most_outputs(const Blocking& b) { return 2 + b.size.features; }

// Memory of one worker.
template <class T>
struct GradientScratch {
    T* distances;     // one tile
    T* multiplicity;  // one tile: the given weights, then how often each pair counts, for tiles on the diagonal
    T* sums;          // [output][lane], within a chunk

    KERNELCG_INLINE GradientScratch(Carver& carver, const Blocking& b)
        : distances(carver.take<T>(kTileSize<T>)),
          multiplicity(carver.take<T>(kTileSize<T>)),
          sums(carver.take<T>(most_outputs(b) * kLanes<T>)) {}
};

// Memory of the whole call, beside the points themselves.
template <class T>
struct GradientBuffers {
    Panels<T> left, right;
    double* totals;  // [block][output]
    NearPanels<T> near;
    int64_t scratch_bytes;
    char* scratch;

    KERNELCG_INLINE GradientBuffers(Carver& carver, const Blocking& b)
        : left(carver, b.size.rows, b.size.vectors),
          right(carver, b.size.columns, b.size.vectors),
          totals(carver.take<double>(b.blocks * most_outputs(b))),
          near(carver, b),
          scratch_bytes(bytes_of<GradientScratch<T>>(b)),
          scratch(carver.take<char>(scratch_bytes * b.workers)) {}

    KERNELCG_INLINE GradientScratch<T> scratch_of(int worker, const Blocking& b) const {
        Carver carver(scratch + worker * scratch_bytes);
        return GradientScratch<T>(carver, b);
    }
};

template <class T>
int64_t gradient_workspace_bytes(const ProblemSize& size) {
    return bytes_of<GradientBuffers<T>>(make_blocking<T>(size));
}

// tile += outer products of `vectors` packed columns: rows (Panels::point) against one panel.
template <class T>
KERNELCG_INLINE void add_outer_products(const T* rows, const T* panel, int64_t vectors, Tile<T, kTileRows>& tile) {
    for (int64_t q = 0; q < vectors; ++q, rows += kPanel<T>, panel += kPanel<T>) {
        Vec<T> columns[kTileVectors];
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) columns[v] = load(panel + v * kLanes<T>);
        KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i) {
            const Vec<T> row = broadcast(rows[i]);
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) tile[i][v] += row * columns[v];
        }
    }
}

// sums[r] += sum over the tile of weights (x_ir - x_jr)^2, for every feature r.
template <class T>
KERNELCG_INLINE void add_feature_sums(const T* rows, const T* panel, int64_t features,
                                      const Tile<T, kTileRows>& weights, T* sums) {
    for (int64_t r = 0; r < features; ++r, rows += kPanel<T>, panel += kPanel<T>, sums += kLanes<T>) {
        Vec<T> columns[kTileVectors], partial[kTileVectors];
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) {
            columns[v] = load(panel + v * kLanes<T>);
            partial[v] = Vec<T>{};
        }
        KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i) {
            const Vec<T> row = broadcast(rows[i]);
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) {
                const Vec<T> difference = columns[v] - row;
                partial[v] += (weights[i][v] * difference) * difference;
            }
        }
        Vec<T> sum = load(sums);
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) sum += partial[v];
        store(sums, sum);
    }
}

template <class T>
KERNELCG_INLINE void store_tile(T* buffer, const Tile<T, kTileRows>& tile) {
    KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i)
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
            store(buffer + i * kPanel<T> + v * kLanes<T>, tile[i][v]);
}

template <class T>
KERNELCG_INLINE void multiply_tile(Tile<T, kTileRows>& tile, const T* factors) {
    KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i)
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
            tile[i][v] *= load(factors + i * kPanel<T> + v * kLanes<T>);
}

template <Profile P, class T, bool PerDimension>
class GradientWorker {
public:
    KERNELCG_INLINE GradientWorker(const Blocking& blocking, const GradientBuffers<T>& buffers,
                                   const GradientArguments<T>& arguments, int worker)
        : blocking_(blocking), buffers_(buffers), arguments_(arguments), x_(packed(arguments.x)),
          y_(packed(arguments.y)), scratch_(buffers.scratch_of(worker, blocking)),
          outputs_(1 + (PerDimension ? blocking.size.features : 1)) {}

    void process_block(int64_t block) {
        const Range rows = rows_of_block(blocking_, block);
        double* const totals = buffers_.totals + block * most_outputs(blocking_);
        std::memset(totals, 0, sizeof(double) * size_t(outputs_));
        for_each_chunk<T>(blocking_, rows, [&](int64_t chunk, Range all) {
            if (!buffers_.near.has_any(block, chunk)) return;
            std::memset(scratch_.sums, 0, sizeof(T) * size_t(outputs_ * kLanes<T>));
            for_each_strip<T>(blocking_, rows, all, [&](int64_t row, Range panels, bool on_diagonal) {
                buffers_.near.for_each_run(row, panels, [&](Range run) {
                    for (int64_t panel = run.begin; panel < run.end; ++panel)
                        process_tile(row, panel, on_diagonal && panel == panels.begin);
                });
            });
            for (int64_t k = 0; k < outputs_; ++k)
                totals[k] += sum_of_lanes<T>(load(scratch_.sums + k * kLanes<T>));
        });
    }

private:
    KERNELCG_INLINE void process_tile(int64_t row, int64_t panel, bool on_diagonal) {
        const int64_t features = blocking_.size.features;
        const T* const row_features = x_.point(row);
        const T* const panel_features = y_.panel(panel);
        {
            Tile<T, kTileRows> distances;
            squared_distances<T, kTileRows>(row_features, panel_features, features, distances);
            store_tile<T>(scratch_.distances, distances);
        }
        Tile<T, kTileRows> pair_weights;
        fill_pair_weights(row, panel, on_diagonal, pair_weights);
        combine(pair_weights);
        if constexpr (PerDimension)
            add_feature_sums<T>(row_features, panel_features, features, pair_weights, scratch_.sums + kLanes<T>);
    }

    // The tile of M, or of M + Mᵀ where a pair stands for both of its orders.
    KERNELCG_INLINE void fill_pair_weights(int64_t row, int64_t panel, bool on_diagonal, Tile<T, kTileRows>& tile) {
        const int64_t vectors = blocking_.size.vectors;
        KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i)
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) tile[i][v] = Vec<T>{};
        add_outer_products<T>(buffers_.left.point(row), buffers_.right.panel(panel), vectors, tile);
        if (blocking_.size.symmetric)
            add_outer_products<T>(buffers_.right.point(row), buffers_.left.panel(panel), vectors, tile);
        if (arguments_.weights.data) add_given_weights(row, panel, tile);
        if (on_diagonal) {
            for (int k = 0; k < kTileSize<T>; ++k) scratch_.multiplicity[k] = T(1);
            keep_upper_triangle(scratch_.multiplicity, kPanel<T>, kPanel<T>, row, panel * kPanel<T>);
            multiply_tile<T>(tile, scratch_.multiplicity);
        }
    }

    // tile += 2 factor * the given weights: both orders of a pair. Padding of the tile stays 0.
    KERNELCG_INLINE void add_given_weights(int64_t row, int64_t panel, Tile<T, kTileRows>& tile) {
        const int64_t n = arguments_.weights.rows, column = panel * kPanel<T>;
        const size_t width = sizeof(T) * size_t(smaller(n - column, int64_t(kPanel<T>)));
        std::memset(scratch_.multiplicity, 0, sizeof(T) * size_t(kTileSize<T>));
        for (int64_t i = 0; i < smaller(n - row, int64_t(kTileRows)); ++i)
            std::memcpy(scratch_.multiplicity + i * kPanel<T>, arguments_.weights.data + (row + i) * n + column, width);
        const Vec<T> factor = broadcast(T(2) * arguments_.factor);
        KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i)
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
                tile[i][v] += factor * load(scratch_.multiplicity + i * kPanel<T> + v * kLanes<T>);
    }

    // Adds the tile's share of the value (and of the derivative for a shared lengthscale); for one lengthscale per
    // feature the pair weights become M w.
    KERNELCG_INLINE void combine(Tile<T, kTileRows>& pair_weights) {
        Vec<T> value = load(scratch_.sums);
        Vec<T> shared = load(scratch_.sums + kLanes<T>);
        KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i)
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) {
                const Vec<T> s = load(scratch_.distances + i * kPanel<T> + v * kLanes<T>);
                const auto kernel = kernel_value_and_derivative<P, PerDimension, T>(s);
                value += pair_weights[i][v] * kernel.value;
                if constexpr (PerDimension)
                    pair_weights[i][v] *= kernel.derivative;
                else
                    shared += pair_weights[i][v] * kernel.derivative;
            }
        store(scratch_.sums, value);
        if constexpr (!PerDimension) store(scratch_.sums + kLanes<T>, shared);
    }

    const Blocking& blocking_;
    const GradientBuffers<T>& buffers_;
    const GradientArguments<T>& arguments_;
    const Panels<T, const T> x_, y_;
    const GradientScratch<T> scratch_;
    const int64_t outputs_;
};

template <Profile P, class T, bool PerDimension>
void run_gradient(const Blocking& blocking, const GradientBuffers<T>& buffers,
                  const GradientArguments<T>& arguments) {
    double* const out = arguments.out;
    Shares blocks(blocking.blocks, 1);
    run_workers(blocking.workers, [&](int worker) {
        GradientWorker<P, T, PerDimension> work(blocking, buffers, arguments, worker);
        blocks.for_each_item([&](int64_t block) { work.process_block(block); });
    });
    const int64_t outputs = 1 + (PerDimension ? blocking.size.features : 1);
    for (int64_t k = 0; k < outputs; ++k) {
        out[k] = 0;
        for (int64_t block = 0; block < blocking.blocks; ++block)
            out[k] += buffers.totals[block * most_outputs(blocking) + k];
    }
}

template <Profile P, class T>
void gradient(const GradientArguments<T>& arguments) {
    const ProblemSize size = {arguments.x.rows,       arguments.y.rows,  arguments.x.columns,
                              arguments.left.columns, arguments.threads, arguments.symmetric};
    const Blocking blocking = make_blocking<T>(size);
    const Allocation allocation(bytes_of<GradientBuffers<T>>(blocking));
    Carver carver(allocation.memory());
    GradientBuffers<T> buffers(carver, blocking);
    if (arguments.local)
        buffers.near.enclose(blocking, packed(arguments.x), packed(arguments.y), T(farthest_square<T>(P)));
    pack(arguments.left, buffers.left, arguments.threads);
    pack(arguments.right, buffers.right, arguments.threads);
    if (arguments.per_dimension)
        run_gradient<P, T, true>(blocking, buffers, arguments);
    else
        run_gradient<P, T, false>(blocking, buffers, arguments);
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
