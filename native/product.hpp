// out = K(x, y) v without storing K.
//
// Within a strip sums are kept in T; they are added to double-precision accumulators after every block of rows
// (column direction) and every kColumnsPerFlush columns (row direction), so that the error of a float product does
// not grow with the number of points.
#pragma once

#include <cstring>

#include "accumulate.hpp"
#include "blocking.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

constexpr int64_t kColumnsPerFlush = 8192;

// Memory of one worker.
template <class T>
struct ProductScratch {
    T* strip;
    T* row_sums;     // [row of the block][vector][lane]
    T* column_sums;  // panels of the chunk
    Panels<T, double> totals;

    ProductScratch() = default;
    KERNELCG_INLINE ProductScratch(Carver& carver, const Blocking& b)
        : strip(carver.take<T>(kStripSize<T>)),
          row_sums(carver.take<T>(b.rows_per_block * b.size.vectors * kLanes<T>)),
          column_sums(carver.take<T>(b.size.symmetric ? b.panels_per_chunk * b.size.vectors * kPanel<T> : 0)) {
        if (b.size.symmetric) totals = Panels<T, double>(carver, b.size.rows, b.size.vectors);
    }
};

// Memory of the whole call.
template <class T>
struct ProductBuffers {
    Panels<T> x, y, v;
    int64_t scratch_bytes;
    char* scratch;

    KERNELCG_INLINE ProductBuffers(Carver& carver, const Blocking& b)
        : x(carver, b.size.rows, b.size.features),
          y(b.size.symmetric ? x : Panels<T>(carver, b.size.columns, b.size.features)),
          v(carver, b.size.columns, b.size.vectors),
          scratch_bytes(bytes_of<ProductScratch<T>>(b)),
          scratch(carver.take<char>(scratch_bytes * b.workers)) {}

    KERNELCG_INLINE ProductScratch<T> scratch_of(int worker, const Blocking& b) const {
        Carver carver(scratch + worker * scratch_bytes);
        return ProductScratch<T>(carver, b);
    }
};

template <class T>
int64_t product_workspace_bytes(const ProblemSize& size) {
    return bytes_of<ProductBuffers<T>>(make_blocking<T>(size));
}

template <Profile P, class T, bool Symmetric>
class ProductWorker {
public:
    KERNELCG_INLINE ProductWorker(const Blocking& blocking, const ProductBuffers<T>& buffers, int worker, double* out)
        : blocking_(blocking), buffers_(buffers), scratch_(buffers.scratch_of(worker, blocking)), out_(out) {
        if (Symmetric)
            std::memset(scratch_.totals.data, 0,
                        sizeof(double) * size_t(scratch_.totals.count() * scratch_.totals.panel_size()));
    }

    void process_block(int64_t block) {
        const Range rows = rows_of_block(blocking_, block);
        if (!Symmetric) std::memset(out_ + rows.begin * vectors(), 0, sizeof(double) * size_t(block_entries(rows)));
        clear_row_sums();
        int64_t columns_since_flush = 0;
        for_each_chunk<T>(blocking_, rows, [&](Range chunk) {
            process_chunk(rows, chunk);
            columns_since_flush += (chunk.end - chunk.begin) * kPanel<T>;
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

    void process_chunk(Range rows, Range chunk) {
        const int64_t chunk_entries = (chunk.end - chunk.begin) * vectors() * kPanel<T>;
        if (Symmetric) std::memset(scratch_.column_sums, 0, sizeof(T) * size_t(chunk_entries));
        for_each_strip<T>(blocking_, rows, chunk, [&](int64_t row, Range panels, bool on_diagonal) {
            process_strip(row, panels, on_diagonal, row_sums_at(rows, row), chunk.begin);
        });
        if (Symmetric) {
            double* const totals = scratch_.totals.panel(chunk.begin);
            for (int64_t k = 0; k < chunk_entries; ++k) totals[k] += double(scratch_.column_sums[k]);
        }
    }

    void process_strip(int64_t row, Range panels, bool on_diagonal, T* row_sums, int64_t first_chunk_panel) {
        if (vectors() > 1) return process_buffered_strip(row, panels, on_diagonal, row_sums, first_chunk_panel);
        if (on_diagonal) {  // half of this panel must be discarded, which needs the buffer
            process_buffered_strip(row, {panels.begin, panels.begin + 1}, true, row_sums, first_chunk_panel);
            ++panels.begin;
        }
        add_product_with_single_vector<P, T, Symmetric>(describe_strip(row, panels, row_sums, first_chunk_panel));
    }

    void process_buffered_strip(int64_t row, Range panels, bool on_diagonal, T* row_sums, int64_t first_chunk_panel) {
        const StripProduct<T> product = describe_strip(row, panels, row_sums, first_chunk_panel);
        fill_strip<P, T, kTileRows>(product.row_features, product.column_features, product.features, product.panels,
                                    product.strip);
        if (on_diagonal) keep_upper_triangle(product.strip, kStripColumns, kPanel<T>, row, panels.begin * kPanel<T>);
        add_buffered_product<T, Symmetric>(product);
    }

    KERNELCG_INLINE StripProduct<T> describe_strip(int64_t row, Range panels, T* row_sums, int64_t first_chunk_panel) {
        StripProduct<T> product;
        product.panels = panels.end - panels.begin;
        product.features = blocking_.size.features;
        product.width = vectors();
        product.row_features = buffers_.x.point(row);
        product.column_features = buffers_.y.panel(panels.begin);
        product.row_vectors = Symmetric ? buffers_.v.point(row) : nullptr;
        product.column_vectors = buffers_.v.panel(panels.begin);
        product.row_sums = row_sums;
        product.column_sums =
            Symmetric ? scratch_.column_sums + (panels.begin - first_chunk_panel) * vectors() * kPanel<T> : nullptr;
        product.strip = scratch_.strip;
        return product;
    }

    // Adds the row sums of a block to the result: the worker's totals, or directly `out`, whose rows it owns then.
    void flush_row_sums(Range rows) {
        for (int64_t row = rows.begin; row < rows.end; ++row) {
            const T* sums = row_sums_at(rows, row);
            double* const target = Symmetric ? scratch_.totals.point(row) : out_ + row * vectors();
            constexpr int64_t stride = Symmetric ? kPanel<T> : 1;
            for (int64_t q = 0; q < vectors(); ++q, sums += kLanes<T>)
                target[q * stride] += sum_of_lanes<T>(load(sums));
        }
    }

    const Blocking& blocking_;
    const ProductBuffers<T>& buffers_;
    ProductScratch<T> scratch_;
    double* out_;
};

// out = sum of the workers' totals, in the order of the workers.
template <class T>
void add_totals(const Blocking& blocking, const ProductBuffers<T>& buffers, double* out) {
    const int64_t vectors = blocking.size.vectors;
    run_workers(blocking.workers, [&](int self) {
        const Range mine = share_of(blocking.size.rows, self, blocking.workers);
        for (int worker = 0; worker < blocking.workers; ++worker) {
            const Panels<T, double> totals = buffers.scratch_of(worker, blocking).totals;
            for (int64_t row = mine.begin; row < mine.end; ++row) {
                const double* const source = totals.point(row);
                double* const target = out + row * vectors;
                for (int64_t q = 0; q < vectors; ++q)
                    target[q] = (worker == 0 ? 0.0 : target[q]) + source[q * kPanel<T>];
            }
        }
    });
}

template <Profile P, class T, bool Symmetric>
void run_product(const Blocking& blocking, const ProductBuffers<T>& buffers, double* out) {
    run_workers(blocking.workers, [&](int worker) {
        ProductWorker<P, T, Symmetric> work(blocking, buffers, worker, out);
        for_each_block(blocking, worker, [&](int64_t block) { work.process_block(block); });
    });
    if (Symmetric) add_totals<T>(blocking, buffers, out);
}

template <Profile P, class T>
void product(const ProductArguments<T>& arguments) {
    const ProblemSize size = {arguments.x.rows,    arguments.y.rows,  arguments.x.columns,
                              arguments.v.columns, arguments.threads, arguments.symmetric};
    const Blocking blocking = make_blocking<T>(size);
    const Allocation allocation(bytes_of<ProductBuffers<T>>(blocking));
    Carver carver(allocation.memory());
    const ProductBuffers<T> buffers(carver, blocking);
    pack(arguments.x, buffers.x, arguments.threads);
    if (!arguments.symmetric) pack(arguments.y, buffers.y, arguments.threads);
    pack(arguments.v, buffers.v, arguments.threads);
    if (arguments.symmetric)
        run_product<P, T, true>(blocking, buffers, arguments.out);
    else
        run_product<P, T, false>(blocking, buffers, arguments.out);
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
