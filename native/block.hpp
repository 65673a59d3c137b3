// The kernel values themselves: out = K(x, y), also when one side is a single point.
//
// The side with fewer points supplies the rows of the strips and is packed as a whole; the other is packed panel by
// panel where it is used, so that the extra memory stays small and a single row costs one pass over the data.
#pragma once

#include <cstring>

#include "blocking.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

constexpr int64_t kRowsPerBlockTask = 256;

// The two sides in the order in which the strips use them, with the distances between entries of `out`.
template <class T>
struct BlockSides {
    MatrixView<T> rows, columns;
    int64_t row_stride, column_stride;
    T* out;
    int workers;
};

template <class T>
KERNELCG_INLINE BlockSides<T> arrange_sides(const BlockArguments<T>& a) {
    const int64_t width = a.y.rows;
    // Transposed strips write scattered entries: worthwhile only when full panels of y would be mostly padding.
    const bool transpose = a.y.rows < a.x.rows && a.y.rows < 2 * kPanel<T>;
    const int64_t panels = panel_count<T>(larger(a.x.rows, a.y.rows));
    const int workers = int(clamp(panels, 1, a.threads));
    if (transpose) return {a.y, a.x, 1, width, a.out, workers};
    return {a.x, a.y, width, 1, a.out, workers};
}

template <class T>
struct BlockBuffers {
    Panels<T> rows;
    int64_t chunk_panels;
    int64_t chunk_elements;  // of one worker's packed columns
    T* chunks;
    T* strips;

    KERNELCG_INLINE BlockBuffers(Carver& carver, const BlockSides<T>& sides)
        : rows(carver, sides.rows.rows, sides.rows.columns) {
        const ProblemSize size = {sides.rows.rows, sides.columns.rows, sides.rows.columns, 1, sides.workers, false};
        chunk_panels = choose_panels_per_chunk<T>(size);
        chunk_elements = round_up(chunk_panels * kPanel<T> * sides.rows.columns, kAlignment);
        chunks = carver.take<T>(chunk_elements * sides.workers);
        strips = carver.take<T>(int64_t(kStripSize<T>) * sides.workers);
    }
};

template <class T>
KERNELCG_INLINE void copy_strip(const T* strip, int64_t strip_rows, int64_t first_row, Range columns,
                                const BlockSides<T>& sides) {
    for (int64_t r = 0; r < strip_rows; ++r, strip += kStripColumns) {
        T* const target = sides.out + (first_row + r) * sides.row_stride + columns.begin * sides.column_stride;
        const int64_t count = columns.end - columns.begin;
        if (sides.column_stride == 1)
            std::memcpy(target, strip, sizeof(T) * size_t(count));
        else
            for (int64_t c = 0; c < count; ++c) target[c * sides.column_stride] = strip[c];
    }
}

// Rows [rows.begin, rows.end) against one packed chunk.
template <Profile P, class T>
void fill_chunk(const BlockSides<T>& sides, const BlockBuffers<T>& buffers, Range rows, Range columns,
                const T* packed_columns, T* strip) {
    const int64_t features = sides.rows.columns;
    const int64_t panels = panel_count<T>(columns.end - columns.begin);
    for (int64_t row = rows.begin; row < rows.end;) {
        const T* const row_features = buffers.rows.point(row);
        const bool full = row % kTileRows == 0 && rows.end - row >= kTileRows;
        if (full)
            fill_strip<P, T, kTileRows>(row_features, packed_columns, features, panels, strip);
        else
            fill_strip<P, T, 1>(row_features, packed_columns, features, panels, strip);
        const int64_t done = full ? kTileRows : 1;
        copy_strip(strip, done, row, columns, sides);
        row += done;
    }
}

template <Profile P, class T>
void run_block_worker(const BlockSides<T>& sides, const BlockBuffers<T>& buffers, Shares& tasks, int worker) {
    const int64_t chunk_columns = buffers.chunk_panels * kPanel<T>;
    const int64_t row_tasks = divide_up(sides.rows.rows, kRowsPerBlockTask);
    T* const packed = buffers.chunks + worker * buffers.chunk_elements;
    T* const strip = buffers.strips + int64_t(worker) * kStripSize<T>;
    int64_t packed_chunk = -1;
    tasks.for_each_item([&](int64_t task) {
        const int64_t chunk = task / row_tasks;
        const Range columns = {chunk * chunk_columns, smaller((chunk + 1) * chunk_columns, sides.columns.rows)};
        if (chunk != packed_chunk)
            for (int64_t p = 0; p < panel_count<T>(columns.end - columns.begin); ++p)
                pack_panel(sides.columns, columns.begin + p * kPanel<T>,
                           packed + p * kPanel<T> * sides.columns.columns);
        packed_chunk = chunk;
        const int64_t first_row = task % row_tasks * kRowsPerBlockTask;
        const Range rows = {first_row, smaller(first_row + kRowsPerBlockTask, sides.rows.rows)};
        fill_chunk<P, T>(sides, buffers, rows, columns, packed, strip);
    });
}

template <Profile P, class T>
void block(const BlockArguments<T>& arguments) {
    const BlockSides<T> sides = arrange_sides(arguments);
    const Allocation allocation(bytes_of<BlockBuffers<T>>(sides));
    Carver carver(allocation.memory());
    const BlockBuffers<T> buffers(carver, sides);
    pack(sides.rows, buffers.rows, sides.workers);
    const int64_t chunks = divide_up(sides.columns.rows, buffers.chunk_panels * kPanel<T>);
    Shares tasks(chunks * divide_up(sides.rows.rows, kRowsPerBlockTask), 1);
    run_workers(sides.workers, [&](int worker) { run_block_worker<P, T>(sides, buffers, tasks, worker); });
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
