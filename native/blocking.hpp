// How the pairs of points are divided: blocks of rows (one worker each), chunks of column panels (sized for the
// cache), strips of kTileRows rows. Shared by the product and the gradient. Blocks and chunks do not depend on the
// number of threads, and neither do the results.
#pragma once

#include "strip.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

struct Blocking {
    ProblemSize size;
    int workers;             // at most one per block
    int64_t rows_per_block;  // a multiple of kTileRows
    int64_t panels_per_chunk;
    int64_t blocks;
    int64_t chunks;  // of all columns
};

// Cache budgets in bytes, per chunk and per block. What a chunk holds is read again by every strip of a block and
// should stay in the second-level cache, together with the row sums of the block. Speed is flat around these values;
// chunks of a few panels only are up to 10 % slower with many vectors.
constexpr int64_t kChunkFeatureBytes = 256 * 1024;
constexpr int64_t kChunkVectorBytes = 64 * 1024;
constexpr int64_t kBlockSumBytes = 256 * 1024;
constexpr int64_t kLargestBlock = 256;

// Blocks of a matrix at least, where its rows suffice: enough to keep 16 workers equally busy.
constexpr int64_t kFewestBlocks = 32;

// Large blocks amortise the double-precision accumulation of the column sums, which reads and writes memory
// proportional to the number of points once per block; small ones are needed to keep all workers busy and the row sums
// in the cache.
template <class T>
KERNELCG_INLINE int64_t choose_rows_per_block(const ProblemSize& size) {
    const int64_t fitting = kBlockSumBytes / (larger<int64_t>(size.vectors, 1) * KERNELCG_VECTOR_BYTES);
    const int64_t sharing = divide_up(size.rows, kFewestBlocks);
    const int64_t rows = clamp(smaller(fitting, sharing), 4 * kTileRows, kLargestBlock);
    return round_up(rows, kTileRows);
}

template <class T>
KERNELCG_INLINE int64_t choose_panels_per_chunk(const ProblemSize& size) {
    const int64_t panel_bytes = kPanel<T> * int64_t(sizeof(T));
    const int64_t by_features = kChunkFeatureBytes / (panel_bytes * larger<int64_t>(size.features, 1));
    const int64_t by_vectors = kChunkVectorBytes / (panel_bytes * larger<int64_t>(size.vectors, 1));
    return clamp(smaller(by_features, by_vectors), 2, kStripPanels<T>);
}

template <class T>
KERNELCG_INLINE Blocking make_blocking(const ProblemSize& size) {
    Blocking blocking;
    blocking.size = size;
    blocking.rows_per_block = choose_rows_per_block<T>(size);
    blocking.panels_per_chunk = choose_panels_per_chunk<T>(size);
    blocking.blocks = divide_up(size.rows, blocking.rows_per_block);
    blocking.chunks = divide_up(panel_count<T>(size.columns), blocking.panels_per_chunk);
    blocking.workers = int(clamp(blocking.blocks, 1, size.threads));
    return blocking;
}

// Rows of a block, clipped to the matrix.
KERNELCG_INLINE Range rows_of_block(const Blocking& blocking, int64_t block) {
    const int64_t begin = block * blocking.rows_per_block;
    return {begin, smaller(begin + blocking.rows_per_block, blocking.size.rows)};
}

// Column panels that concern rows from `row` on: all, or those not entirely left of the diagonal.
template <class T>
KERNELCG_INLINE Range panels_for_row(const Blocking& blocking, int64_t row) {
    const int64_t first = blocking.size.symmetric ? row / kPanel<T> : 0;
    return {first, panel_count<T>(blocking.size.columns)};
}

// Calls visit(chunk, panels) for the chunks of a block, from left to right. Chunks begin at the same panels for all
// blocks; the first one of a block is clipped to the panels that concern it.
template <class T, class Visit>
KERNELCG_INLINE void for_each_chunk(const Blocking& blocking, Range rows, const Visit& visit) {
    const Range panels = panels_for_row<T>(blocking, rows.begin);
    for (int64_t chunk = panels.begin / blocking.panels_per_chunk; chunk < blocking.chunks; ++chunk) {
        const int64_t begin = chunk * blocking.panels_per_chunk;
        visit(chunk, Range{larger(begin, panels.begin), smaller(begin + blocking.panels_per_chunk, panels.end)});
    }
}

// Calls visit(row, panels, on_diagonal) for the strips of a block within one chunk; panels left of the diagonal are
// skipped, and on_diagonal says that the first of the remaining ones contains it.
template <class T, class Visit>
KERNELCG_INLINE void for_each_strip(const Blocking& blocking, Range rows, Range chunk, const Visit& visit) {
    for (int64_t row = rows.begin; row < rows.end; row += kTileRows) {
        const int64_t first = larger(chunk.begin, panels_for_row<T>(blocking, row).begin);
        if (first >= chunk.end) continue;
        const bool on_diagonal = blocking.size.symmetric && first * kPanel<T> <= row;
        visit(row, Range{first, chunk.end}, on_diagonal);
    }
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
