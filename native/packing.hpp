// Panels: the layout in which every matrix with one row per data point (features, vectors, accumulators) is kept.
//
// A panel holds kPanel consecutive points, one column after the other, so that one vector load brings the same
// feature of neighbouring points and a tile reads one sequential stream (no power-of-two strides that would compete
// for the same cache sets). Missing points of the last panel are zeros.
#pragma once

#include "interface.hpp"
#include "simd.hpp"
#include "workers.hpp"
#include "workspace.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

// Register tile: kTileRows points (broadcast) against kTileVectors vectors of points. The accumulators must fit the
// registers together with the loaded vectors: 24 of 32 with AVX-512, 16 of 32 with NEON, 8 of 16 otherwise.
#if KERNELCG_VECTOR_BYTES == 64
constexpr int kTileRows = 8;
constexpr int kTileVectors = 3;
#elif defined(__aarch64__)
constexpr int kTileRows = 4;
constexpr int kTileVectors = 4;
#else
constexpr int kTileRows = 4;
constexpr int kTileVectors = 2;
#endif

template <class T>
constexpr int kPanel = kTileVectors * kLanes<T>;

template <class T>
KERNELCG_INLINE int64_t panel_count(int64_t points) {
    return divide_up(points, kPanel<T>);
}

// Element: what is stored; T: the type whose panel width is used (accumulators in double follow the panels of T).
template <class T, class Element = T>
struct Panels {
    Element* data = nullptr;
    int64_t points = 0;
    int64_t width = 0;

    Panels() = default;
    KERNELCG_INLINE Panels(Carver& carver, int64_t points_, int64_t width_)
        : data(carver.take<Element>(panel_count<T>(points_) * kPanel<T> * width_)), points(points_), width(width_) {}

    KERNELCG_INLINE Panels(Element* data_, int64_t points_, int64_t width_)
        : data(data_), points(points_), width(width_) {}

    KERNELCG_INLINE int64_t count() const { return panel_count<T>(points); }
    KERNELCG_INLINE int64_t panel_size() const { return width * kPanel<T>; }
    KERNELCG_INLINE Element* panel(int64_t index) const { return data + index * panel_size(); }

    // Column c of point i is at point(i)[c * kPanel<T>]; the following points of the panel are adjacent.
    KERNELCG_INLINE Element* point(int64_t i) const { return panel(i / kPanel<T>) + i % kPanel<T>; }
};

// Packs the points first ... first + kPanel<T> - 1 of a row-major matrix, zeros beyond its end.
template <class T>
void pack_panel(const MatrixView<T>& source, int64_t first, T* panel) {
    const int64_t width = source.columns;
    const int64_t present = clamp(source.rows - first, 0, kPanel<T>);
    const T* rows = source.data + first * width;
    for (int64_t column = 0; column < width; ++column, panel += kPanel<T>) {
        for (int64_t i = 0; i < present; ++i) panel[i] = rows[i * width + column];
        for (int64_t i = present; i < kPanel<T>; ++i) panel[i] = T(0);
    }
}

template <class T>
void pack(const MatrixView<T>& source, const Panels<T>& target, int threads) {
    Shares panels(target.count(), items_per_copy_share(target.panel_size()));
    run_workers(panels.workers(threads), [&](int) {
        panels.for_each_item([&](int64_t p) { pack_panel(source, p * kPanel<T>, target.panel(p)); });
    });
}

// Points that the caller has packed.
template <class T>
KERNELCG_INLINE Panels<T, const T> packed(const PackedMatrix<T>& matrix) {
    return {matrix.data, matrix.rows, matrix.columns};
}

template <class T>
void pack_points(const MatrixView<T>& source, T* target, int threads) {
    pack(source, Panels<T>(target, source.rows, source.columns), threads);
}

template <class T>
int64_t panels_bytes(int64_t rows, int64_t columns) {
    Carver counting;
    Panels<T>(counting, rows, columns);
    return counting.bytes();
}

// A panel of T takes up one or several panels of double; zeros where there are none.
template <class T>
void scale_panel(const Panels<double, const double>& source, const double* factors, int64_t index, T* target) {
    static_assert(kPanel<T> % kPanel<double> == 0, "panels of double must not straddle panels of T");
    constexpr int64_t parts = kPanel<T> / kPanel<double>;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t p = index * parts + part;
        const bool present = p < source.count();
        for (int64_t c = 0; c < source.width; ++c) {
            T* const to = target + c * kPanel<T> + part * kPanel<double>;
            const double* const from = present ? source.panel(p) + c * kPanel<double> : nullptr;
            for (int64_t i = 0; i < kPanel<double>; ++i) to[i] = present ? T(factors[c] * from[i]) : T(0);
        }
    }
}

template <class T>
void scale(const PackedMatrix<double>& source, const double* factors, T* target, int threads) {
    const Panels<T> result(target, source.rows, source.columns);
    Shares panels(result.count(), items_per_copy_share(result.panel_size()));
    run_workers(panels.workers(threads), [&](int) {
        panels.for_each_item([&](int64_t p) { scale_panel<T>(packed(source), factors, p, result.panel(p)); });
    });
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
