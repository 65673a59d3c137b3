// out = K(x, y) v without storing K.
//
// Within a strip sums are kept in T; they are added to double-precision accumulators after every block of rows
// (column direction) and every kColumnsPerFlush columns (row direction), so that the error of a float product does
// not grow with the number of points. The row sums of a block are of this block alone. The column sums of a symmetric
// product, or of one in both directions, are added up over the blocks, in the order of the blocks (see
// ordered_blocks.hpp).
#pragma once

#include <cstring>

#include "accumulate.hpp"
#include "near_panels.hpp"
#include "ordered_blocks.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

constexpr int64_t kColumnsPerFlush = 8192;

// Memory of one worker.
template <class T>
struct ProductScratch {
    T* strip;
    T* row_sums;     // [row of the block][vector][lane]
    T* column_sums;  // panels of the chunk

    KERNELCG_INLINE ProductScratch(Carver& carver, const Blocking& b)
        : strip(carver.take<T>(kStripSize<T>)),
          row_sums(carver.take<T>(b.rows_per_block * b.size.vectors * kLanes<T>)),
          column_sums(carver.take<T>(b.size.has_column_sums() ? b.panels_per_chunk * b.size.vectors * kPanel<T> : 0)) {}
};

// Blocks at least whose column sums may wait for those of an earlier block: while a worker is interrupted for a time
// slice of the system, some milliseconds, the others go on. Unused memory is not touched.
constexpr int64_t kFewestSlots = 18;

KERNELCG_INLINE int64_t slot_count(const Blocking& b) {
    return b.workers > 1 ? smaller(larger(int64_t(2 * b.workers + 2), kFewestSlots), b.blocks) : 1;
}

template <class T>
KERNELCG_INLINE OrderedSize ordered_size(const Blocking& b) {
    const int64_t rows_left_out = b.size.symmetric ? b.rows_per_block : 0;  // a triangle, or all of a rectangle
    return {b.blocks, b.size.has_column_sums() ? b.chunks : 0, rows_left_out, b.panels_per_chunk * kPanel<T>,
            slot_count(b)};
}

// Memory of the whole call, beside the points themselves.
template <class T>
struct ProductBuffers {
    Panels<T> v;
    Panels<T> w;               // vectors of the rows, where they are not v
    Panels<T, double> totals;  // column sums over all blocks
    int64_t slot_elements;
    T* slots;  // [slot]: column sums of a block, in panels; a single worker needs none
    OrderedMemory order;
    NearPanels<T> near;
    int64_t scratch_bytes;
    char* scratch;

    KERNELCG_INLINE ProductBuffers(Carver& carver, const Blocking& b)
        : v(carver, b.size.columns, b.size.vectors),
          w(carver, b.size.both_ways ? b.size.rows : 0, b.size.vectors),
          totals(carver, b.size.has_column_sums() ? b.size.columns : 0, b.size.vectors),
          slot_elements(totals.count() * totals.panel_size()),
          slots(carver.take<T>(b.workers > 1 ? slot_elements * slot_count(b) : 0)),
          order(ordered_memory(carver, ordered_size<T>(b))),
          near(carver, b),
          scratch_bytes(bytes_of<ProductScratch<T>>(b)),
          scratch(carver.take<char>(scratch_bytes * b.workers)) {}

    KERNELCG_INLINE ProductScratch<T> scratch_of(int worker, const Blocking& b) const {
        Carver carver(scratch + worker * scratch_bytes);
        return ProductScratch<T>(carver, b);
    }

private:
    static KERNELCG_INLINE OrderedMemory ordered_memory(Carver& carver, const OrderedSize& size) {
        return {carver.take<int64_t>(size.parts), carver.take<int64_t>(size.blocks), carver.take<int64_t>(size.slots),
                carver.take<int64_t>(size.slots), carver.take<char>(size.slots * size.parts)};
    }
};

template <class T>
int64_t product_workspace_bytes(const ProblemSize& size) {
    return bytes_of<ProductBuffers<T>>(make_blocking<T>(size));
}

template <Profile P, class T, bool ColumnSums>
class ProductWorker {
public:
    KERNELCG_INLINE ProductWorker(const Blocking& blocking, const ProductBuffers<T>& buffers, OrderedBlocks& order,
                                  const ProductArguments<T>& arguments, int worker)
        : blocking_(blocking), buffers_(buffers), order_(order), x_(packed(arguments.x)), y_(packed(arguments.y)),
          scratch_(buffers.scratch_of(worker, blocking)), out_(arguments.out) {}

    void process_block(int64_t block) {
        const Range rows = rows_of_block(blocking_, block);
        std::memset(out_ + rows.begin * vectors(), 0, sizeof(double) * size_t(block_entries(rows)));
        clear_row_sums();
        int64_t columns_since_flush = 0;
        for_each_chunk<T>(blocking_, rows, [&](int64_t chunk, Range panels) {
            process_chunk(block, chunk, rows, panels);
            if (ColumnSums) give_column_sums(block, chunk, panels);
            columns_since_flush += (panels.end - panels.begin) * kPanel<T>;
            if (columns_since_flush >= kColumnsPerFlush) {
                flush_row_sums(rows);
                clear_row_sums();
                columns_since_flush = 0;
            }
        });
        flush_row_sums(rows);
    }

private:
    KERNELCG_INLINE int64_t vectors() const { return blocking_.size.vectors; }
    KERNELCG_INLINE int64_t block_entries(Range rows) const { return (rows.end - rows.begin) * vectors(); }
    KERNELCG_INLINE T* row_sums_at(Range rows, int64_t row) const {
        return scratch_.row_sums + (row - rows.begin) * vectors() * kLanes<T>;
    }
    KERNELCG_INLINE void clear_row_sums() {
        std::memset(scratch_.row_sums, 0, sizeof(T) * size_t(blocking_.rows_per_block * vectors() * kLanes<T>));
    }

    KERNELCG_INLINE int64_t panel_entries(Range panels) const {
        return (panels.end - panels.begin) * vectors() * kPanel<T>;
    }

    void process_chunk(int64_t block, int64_t chunk, Range rows, Range all) {
        if (ColumnSums) std::memset(scratch_.column_sums, 0, sizeof(T) * size_t(panel_entries(all)));
        if (!buffers_.near.has_any(block, chunk)) return;
        for_each_strip<T>(blocking_, rows, all, [&](int64_t row, Range panels, bool on_diagonal) {
            buffers_.near.for_each_run(row, panels, [&](Range run) {
                const bool has_diagonal = on_diagonal && run.begin == panels.begin;
                process_strip(row, run, has_diagonal, row_sums_at(rows, row), all.begin);
            });
        });
    }

    // Adds the column sums of a chunk to the totals, or leaves them for later when those of earlier blocks are missing.
    void give_column_sums(int64_t block, int64_t chunk, Range panels) {
        if (!order_.is_due(block, chunk)) {
            const size_t bytes = sizeof(T) * size_t(panel_entries(panels));
            std::memcpy(slot_panel(block, panels.begin), scratch_.column_sums, bytes);
            if (order_.leave(block, chunk)) return;
        }
        add_column_sums(scratch_.column_sums, panels);
        while (order_.advance(block, chunk)) {
            ++block;
            const int64_t first_row = rows_of_block(blocking_, block).begin;
            panels.begin = larger(panels.begin, panels_for_row<T>(blocking_, first_row).begin);
            add_column_sums(slot_panel(block, panels.begin), panels);
        }
    }

    KERNELCG_INLINE T* slot_panel(int64_t block, int64_t panel) const {
        return buffers_.slots + order_.slot_of(block) * buffers_.slot_elements + panel * vectors() * kPanel<T>;
    }

    void add_column_sums(const T* sums, Range panels) {
        double* const totals = buffers_.totals.panel(panels.begin);
        const int64_t entries = panel_entries(panels);
        for (int64_t k = 0; k < entries; ++k) totals[k] += double(sums[k]);
    }

    void process_strip(int64_t row, Range panels, bool on_diagonal, T* row_sums, int64_t first_chunk_panel) {
        if constexpr (P == Profile::tanimoto) {
            process_buffered_strip(row, panels, on_diagonal, row_sums, first_chunk_panel);
        } else {
            if (vectors() > 1) return process_buffered_strip(row, panels, on_diagonal, row_sums, first_chunk_panel);
            if (on_diagonal) {  // half of this panel must be discarded, which needs the buffer
                process_buffered_strip(row, {panels.begin, panels.begin + 1}, true, row_sums, first_chunk_panel);
                ++panels.begin;
            }
            add_product_with_single_vector<P, T, ColumnSums>(describe_strip(row, panels, row_sums, first_chunk_panel));
        }
    }

    void process_buffered_strip(int64_t row, Range panels, bool on_diagonal, T* row_sums, int64_t first_chunk_panel) {
        const StripProduct<T> product = describe_strip(row, panels, row_sums, first_chunk_panel);
        fill_strip<P, T, kTileRows>(product.row_features, product.column_features, product.features, product.panels,
                                    product.strip);
        if (on_diagonal) keep_upper_triangle(product.strip, kStripColumns, kPanel<T>, row, panels.begin * kPanel<T>);
        add_buffered_product<T, ColumnSums>(product);
    }

    KERNELCG_INLINE StripProduct<T> describe_strip(int64_t row, Range panels, T* row_sums, int64_t first_chunk_panel) {
        StripProduct<T> product;
        product.panels = panels.end - panels.begin;
        product.features = blocking_.size.features;
        product.width = vectors();
        product.row_features = x_.point(row);
        product.column_features = y_.panel(panels.begin);
        const Panels<T>& of_rows = blocking_.size.both_ways ? buffers_.w : buffers_.v;
        product.row_vectors = ColumnSums ? of_rows.point(row) : nullptr;
        product.column_vectors = buffers_.v.panel(panels.begin);
        product.row_sums = row_sums;
        product.column_sums =
            ColumnSums ? scratch_.column_sums + (panels.begin - first_chunk_panel) * vectors() * kPanel<T> : nullptr;
        product.strip = scratch_.strip;
        return product;
    }

    // Adds the row sums of a block to its rows of `out`, which no other block writes.
    void flush_row_sums(Range rows) {
        for (int64_t row = rows.begin; row < rows.end; ++row) {
            const T* sums = row_sums_at(rows, row);
            double* const target = out_ + row * vectors();
            for (int64_t q = 0; q < vectors(); ++q, sums += kLanes<T>) target[q] += sum_of_lanes<T>(load(sums));
        }
    }

    const Blocking& blocking_;
    const ProductBuffers<T>& buffers_;
    OrderedBlocks& order_;
    const Panels<T, const T> x_, y_;
    const ProductScratch<T> scratch_;
    double* const out_;
};

// out += the column sums.
template <class T>
void add_totals(const Blocking& blocking, const Panels<T, double>& totals, double* out) {
    const int64_t vectors = blocking.size.vectors;
    Shares rows(blocking.size.columns, items_per_copy_share(vectors));
    run_workers(rows.workers(blocking.size.threads), [&](int) {
        rows.for_each_item([&](int64_t row) {
            const double* const source = totals.point(row);
            double* const target = out + row * vectors;
            for (int64_t q = 0; q < vectors; ++q) target[q] += source[q * kPanel<T>];
        });
    });
}

template <Profile P, class T, bool ColumnSums>
void run_product(const Blocking& blocking, const ProductBuffers<T>& buffers, const ProductArguments<T>& arguments) {
    if (ColumnSums) std::memset(buffers.totals.data, 0, sizeof(double) * size_t(buffers.slot_elements));
    OrderedBlocks order(ordered_size<T>(blocking), buffers.order);
    run_workers(blocking.workers, [&](int worker) {
        ProductWorker<P, T, ColumnSums> work(blocking, buffers, order, arguments, worker);
        for (int64_t block; (block = order.take()) >= 0;) work.process_block(block);
    });
    if (blocking.size.both_ways) {
        const size_t entries = size_t(blocking.size.columns * blocking.size.vectors);
        std::memset(arguments.out_below, 0, sizeof(double) * entries);
    }
    double* const below = blocking.size.both_ways ? arguments.out_below : arguments.out;
    if (ColumnSums) add_totals<T>(blocking, buffers.totals, below);
}

template <Profile P, class T>
void product(const ProductArguments<T>& arguments) {
    const ProblemSize size = {arguments.x.rows,    arguments.y.rows,  arguments.x.columns,
                              arguments.v.columns, arguments.threads, arguments.symmetric, arguments.w.data != nullptr};
    const Blocking blocking = make_blocking<T>(size);
    const Allocation allocation(bytes_of<ProductBuffers<T>>(blocking));
    Carver carver(allocation.memory());
    ProductBuffers<T> buffers(carver, blocking);
    if constexpr (P != Profile::tanimoto)
        if (arguments.local)
            buffers.near.enclose(blocking, packed(arguments.x), packed(arguments.y), T(farthest_square<T>(P)));
    pack(arguments.v, buffers.v, arguments.threads);
    if (size.both_ways) pack(arguments.w, buffers.w, arguments.threads);
    if (size.has_column_sums())
        run_product<P, T, true>(blocking, buffers, arguments);
    else
        run_product<P, T, false>(blocking, buffers, arguments);
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
