// Rows of a Vecchia factor: for every point i with neighbourhood J = N(i) and then i itself,
//
//   g_i = R_JJ^-1 e_i / sqrt(e_i^T R_JJ^-1 e_i),   R = S (K - F F^T) S + D.
//
// With R_JJ = U^T U and i last, U g_i = e_i. One neighbourhood at a time is gathered, evaluated, factorised and solved
// in the memory of one worker; nearly all of the time goes to the products of the rows of F, |J|^2 / 2 of them.
//
// K - F F^T is positive semidefinite, hence in exact arithmetic U_kk^2 >= D_k, U_kj^2 <= R_jj and g_k^2 <= 1 / D_k.
// Rounding may violate each of these; they are enforced, so that the result is finite whatever the data.
#pragma once

#include "strip.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

// A neighbourhood is padded to a multiple of kLocalRows with points that have a unit variance of their own and
// nothing in common with any other.
constexpr int kLocalRows = 4;

// Rows of F multiplied with kLocalRows others at once: the sums must fit the registers.
#if KERNELCG_VECTOR_BYTES == 64 || defined(__aarch64__)
constexpr int kLocalColumns = 4;
#else
constexpr int kLocalColumns = 2;
#endif

constexpr int64_t kLine = kAlignment / int64_t(sizeof(double));  // numbers in a cache line

// Columns of F that are gathered at once: kLocalRows + kLocalColumns of such rows fit the first-level cache.
constexpr int64_t kFactorColumns = 512;

// Chunks of nearly equal width in which the columns of F are treated.
struct FactorChunks {
    int64_t rank;
    int64_t count;

    KERNELCG_INLINE explicit FactorChunks(int64_t rank_) : rank(rank_), count(divide_up(rank_, kFactorColumns)) {}

    KERNELCG_INLINE Range columns(int64_t chunk) const { return {rank * chunk / count, rank * (chunk + 1) / count}; }

    // Distance between gathered rows: an odd number of cache lines, so that they do not compete for the same sets.
    KERNELCG_INLINE int64_t stride() const {
        return (divide_up(count > 0 ? divide_up(rank, count) : 0, kLine) | 1) * kLine;
    }
};

// Neighbours whose rows of F are gathered next (-1: none), from which column on.
struct UpcomingRows {
    const int64_t* points;
    int64_t first_column;
};

// Memory of one worker, for neighbourhoods of at most size.neighbours + 1 points.
struct LocalScratch {
    int64_t matrix_stride;
    int64_t* points;   // rows of the data, the point itself last
    int64_t* entries;  // where their results go in the row of `out`
    Panels<double> coordinates;
    double* scales;     // S
    double* diagonals;  // D
    double* bounds;     // sqrt(R_jj)
    double* solution;   // g
    double* factor;     // rows of S F, a chunk of their columns
    double* matrix;     // rows of R and then of U, the upper triangle of either

    KERNELCG_INLINE LocalScratch(Carver& carver, const LocalSize& size)
        : matrix_stride(round_up(size.neighbours + 1, kPanel<double>)),
          points(carver.take<int64_t>(size.neighbours + 1)),
          entries(carver.take<int64_t>(size.neighbours + 1)),
          coordinates(carver, size.neighbours + 1, size.features),
          scales(carver.take<double>(matrix_stride)),
          diagonals(carver.take<double>(matrix_stride)),
          bounds(carver.take<double>(matrix_stride)),
          solution(carver.take<double>(matrix_stride)),
          factor(carver.take<double>(round_up(size.neighbours + 1, kLocalRows) * FactorChunks(size.rank).stride())),
          matrix(carver.take<double>(round_up(size.neighbours + 1, kTileRows) * matrix_stride)) {}
};

// Consecutive points that one worker treats: the rows of F of the next point are fetched during the present one.
constexpr int64_t kPointsPerShare = 16;

KERNELCG_INLINE Shares shares_of_points(const LocalSize& size) { return {size.points, kPointsPerShare}; }

// Memory of the whole call.
struct LocalBuffers {
    int64_t scratch_bytes;
    char* scratch;

    KERNELCG_INLINE LocalBuffers(Carver& carver, const LocalSize& size)
        : scratch_bytes(bytes_of<LocalScratch>(size)),
          scratch(carver.take<char>(scratch_bytes * shares_of_points(size).workers(size.threads))) {}

    KERNELCG_INLINE LocalScratch scratch_of(int worker, const LocalSize& size) const {
        Carver carver(scratch + worker * scratch_bytes);
        return LocalScratch(carver, size);
    }
};

inline int64_t local_factors_workspace_bytes(const LocalSize& size) { return bytes_of<LocalBuffers>(size); }

// target[i][j] -= left_i . right_j for kLocalRows by kLocalColumns gathered rows of F; width: a multiple of kLanes.
// As many numbers from `upcoming` on are fetched into the second-level cache.
__attribute__((noinline)) inline void subtract_products(const double* left, const double* right, int64_t stride,
                                                        int64_t width, const double* upcoming, double* target,
                                                        int64_t target_stride) {
    Vec<double> sum[kLocalRows][kLocalColumns] = {};
    for (int64_t c = 0; c < width; c += kLanes<double>) {
        __builtin_prefetch(upcoming + c, 0, 2);
        Vec<double> columns[kLocalColumns];
        KERNELCG_UNROLL for (int j = 0; j < kLocalColumns; ++j) columns[j] = load(right + j * stride + c);
        KERNELCG_UNROLL for (int i = 0; i < kLocalRows; ++i) {
            const Vec<double> row = load(left + i * stride + c);
            KERNELCG_UNROLL for (int j = 0; j < kLocalColumns; ++j) sum[i][j] += row * columns[j];
        }
    }
    KERNELCG_UNROLL for (int i = 0; i < kLocalRows; ++i)
        KERNELCG_UNROLL for (int j = 0; j < kLocalColumns; ++j)
            target[i * target_stride + j] -= total_of_lanes(sum[i][j]);
}

// Rows first ... first + kLocalRows - 1 of U within one panel, before what they have in common with each other:
// subtracts U_pi U_p for all earlier rows p.
KERNELCG_INLINE void subtract_earlier_rows(double* matrix, int64_t stride, int64_t first, int64_t panel) {
    double* const target = matrix + first * stride + panel * kPanel<double>;
    Tile<double, kLocalRows> tile;
    KERNELCG_UNROLL for (int i = 0; i < kLocalRows; ++i)
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
            tile[i][v] = load(target + i * stride + v * kLanes<double>);
    for (int64_t p = 0; p < first; ++p) {
        const double* const earlier = matrix + p * stride;
        Vec<double> columns[kTileVectors];
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
            columns[v] = load(earlier + panel * kPanel<double> + v * kLanes<double>);
        KERNELCG_UNROLL for (int i = 0; i < kLocalRows; ++i) {
            const Vec<double> factor = broadcast(earlier[first + i]);
            KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v) tile[i][v] -= factor * columns[v];
        }
    }
    KERNELCG_UNROLL for (int i = 0; i < kLocalRows; ++i)
        KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
            store(target + i * stride + v * kLanes<double>, tile[i][v]);
}

template <Profile P>
class LocalWorker {
public:
    KERNELCG_INLINE LocalWorker(const LocalFactorsArguments& arguments, const LocalScratch& scratch)
        : arguments_(arguments), scratch_(scratch), chunks_(arguments.factor.columns) {}

    void process(int64_t point) {
        collect(point);
        gather_coordinates();
        for (int64_t row = 0; row < count_; row += kTileRows) fill_rows(row);
        for (int64_t chunk = 0; chunk < chunks_.count; ++chunk) {
            gather_factor(chunks_.columns(chunk));
            subtract_factor(chunks_.columns(chunk), rows_after(point, chunk));
        }
        add_diagonal();
        for (int64_t row = 0; row < count_; row += kLocalRows) factorise_rows(row);
        solve();
        write(point);
    }

private:
    KERNELCG_INLINE int64_t stride() const { return scratch_.matrix_stride; }
    KERNELCG_INLINE int64_t padded_count() const { return round_up(count_, kLocalRows); }
    KERNELCG_INLINE int64_t panels() const { return panel_count<double>(count_); }
    KERNELCG_INLINE double* matrix_row(int64_t row) const { return scratch_.matrix + row * stride(); }

    // The neighbours that there are, in the given order, and the point itself.
    void collect(int64_t point) {
        const int64_t neighbours = arguments_.neighbours.columns;
        const int64_t* const found = arguments_.neighbours.data + point * neighbours;
        count_ = 0;
        for (int64_t k = 0; k < neighbours; ++k)
            if (found[k] >= 0) append(found[k], k);
        append(point, neighbours);
        for (int64_t k = count_; k < panels() * kPanel<double>; ++k) {
            scratch_.scales[k] = 0.0;
            scratch_.diagonals[k] = 1.0;
        }
    }

    KERNELCG_INLINE void append(int64_t point, int64_t entry) {
        scratch_.points[count_] = point;
        scratch_.entries[count_] = entry;
        scratch_.scales[count_] = arguments_.scale[point];
        scratch_.diagonals[count_] = arguments_.diagonal[point];
        ++count_;
    }

    void gather_coordinates() {
        const int64_t features = arguments_.x.columns;
        for (int64_t k = 0; k < panels() * kPanel<double>; ++k) {
            double* const target = scratch_.coordinates.point(k);
            const double* const source = arguments_.x.data + (k < count_ ? scratch_.points[k] : 0) * features;
            for (int64_t r = 0; r < features; ++r) target[r * kPanel<double>] = source[r];
        }
    }

    // kTileRows rows of S K S, right of the diagonal.
    void fill_rows(int64_t row) {
        const int64_t features = arguments_.x.columns;
        for (int64_t panel = row / kPanel<double>; panel < panels(); ++panel) {
            Tile<double, kTileRows> tile;
            squared_distances<double, kTileRows>(scratch_.coordinates.point(row), scratch_.coordinates.panel(panel),
                                                 features, tile);
            const double* const scales = scratch_.scales + panel * kPanel<double>;
            double* const target = matrix_row(row) + panel * kPanel<double>;
            KERNELCG_UNROLL for (int i = 0; i < kTileRows; ++i) {
                const Vec<double> scale = broadcast(arguments_.variance * scratch_.scales[row + i]);
                KERNELCG_UNROLL for (int v = 0; v < kTileVectors; ++v)
                    store(target + i * stride() + v * kLanes<double>,
                          kernel_value<P, double>(tile[i][v]) * (scale * load(scales + v * kLanes<double>)));
            }
        }
    }

    // Some columns of S F for all points, with zeros up to a whole vector and for padding points.
    void gather_factor(Range columns) {
        const int64_t width = columns.end - columns.begin;
        const int64_t padded_width = round_up(width, kLanes<double>);
        for (int64_t k = 0; k < padded_count(); ++k) {
            double* const target = scratch_.factor + k * chunks_.stride();
            const int64_t present = k < count_ ? width : 0;
            const double* const source =
                arguments_.factor.data + (k < count_ ? scratch_.points[k] : 0) * chunks_.rank + columns.begin;
            const double scale = scratch_.scales[k];
            for (int64_t c = 0; c < present; ++c) target[c] = scale * source[c];
            for (int64_t c = present; c < padded_width; ++c) target[c] = 0.0;
        }
    }

    // Meanwhile the rows that will be gathered next are fetched into the second-level cache, one with each product.
    void subtract_factor(Range columns, const UpcomingRows& upcoming) {
        const int64_t width = round_up(columns.end - columns.begin, kLanes<double>), length = chunks_.stride();
        int64_t next = 0;
        for (int64_t i = 0; i < padded_count(); i += kLocalRows)
            for (int64_t j = i; j < padded_count(); j += kLocalColumns)
                subtract_products(scratch_.factor + i * length, scratch_.factor + j * length, length, width,
                                  upcoming_row(upcoming, next++), matrix_row(i) + j, stride());
    }

    // What is gathered after a chunk of a point: the next chunk, or the first one of the next point.
    KERNELCG_INLINE UpcomingRows rows_after(int64_t point, int64_t chunk) const {
        const MatrixView<int64_t>& neighbours = arguments_.neighbours;
        const bool same_point = chunk + 1 < chunks_.count;
        const int64_t next = same_point ? point : smaller(point + 1, neighbours.rows - 1);
        return {neighbours.data + next * neighbours.columns, chunks_.columns(same_point ? chunk + 1 : 0).begin};
    }

    // The start of one of them, or of memory that is in the cache when there is none.
    KERNELCG_INLINE const double* upcoming_row(const UpcomingRows& upcoming, int64_t k) const {
        if (k >= arguments_.neighbours.columns || upcoming.points[k] < 0) return scratch_.factor;
        return arguments_.factor.data + upcoming.points[k] * chunks_.rank + upcoming.first_column;
    }

    void add_diagonal() {
        for (int64_t k = 0; k < padded_count(); ++k) {
            double& entry = matrix_row(k)[k];
            entry = larger(entry, 0.0) + scratch_.diagonals[k];
        }
        for (int64_t k = 0; k < panels() * kPanel<double>; ++k)
            scratch_.bounds[k] = k < padded_count() ? matrix_row(k)[k] : 0.0;
        for (int64_t k = 0; k < panels() * kPanel<double>; k += kLanes<double>)
            store(scratch_.bounds + k, square_root(load(scratch_.bounds + k)));
    }

    // The next kLocalRows rows of U.
    void factorise_rows(int64_t first) {
        for (int64_t panel = first / kPanel<double>; panel < panels(); ++panel)
            subtract_earlier_rows(scratch_.matrix, stride(), first, panel);
        for (int64_t row = first; row < first + kLocalRows; ++row) finish_row(first, row);
    }

    // A row of U, once the rows before `first` have been subtracted.
    void finish_row(int64_t first, int64_t row) {
        double* const target = matrix_row(row);
        double square = target[row];
        for (int64_t p = first; p < row; ++p) square -= matrix_row(p)[row] * matrix_row(p)[row];
        const double pivot = square_root(larger(square, scratch_.diagonals[row]));
        const Vec<double> inverse = broadcast(1.0 / pivot);
        for (int64_t c = round_down(first, kLanes<double>); c < panels() * kPanel<double>; c += kLanes<double>) {
            Vec<double> value = load(target + c);
            for (int64_t p = first; p < row; ++p) value -= matrix_row(p)[row] * load(matrix_row(p) + c);
            const Vec<double> bound = load(scratch_.bounds + c);
            store(target + c, maximum(minimum(value * inverse, bound), -bound));
        }
        target[row] = pivot;
    }

    // U g = e for the last unit vector e, from the last row upwards.
    void solve() {
        double* const g = scratch_.solution;
        const int64_t width = panels() * kPanel<double>;
        for (int64_t k = 0; k < width; ++k) g[k] = 0.0;
        for (int64_t row = count_ - 1; row >= 0; --row) {
            const double* const coefficients = matrix_row(row);
            Vec<double> sum = {};
            for (int64_t c = round_down(row, kLanes<double>); c < width; c += kLanes<double>)
                sum += load(coefficients + c) * load(g + c);
            const double right = row == count_ - 1 ? 1.0 : -total_of_lanes(sum);
            const double bound = 1.0 / square_root(scratch_.diagonals[row]);
            g[row] = larger(smaller(right / coefficients[row], bound), -bound);
        }
    }

    void write(int64_t point) {
        const int64_t width = arguments_.neighbours.columns + 1;
        double* const target = arguments_.out + point * width;
        for (int64_t k = 0; k < width; ++k) target[k] = 0.0;
        for (int64_t k = 0; k < count_; ++k) target[scratch_.entries[k]] = scratch_.solution[k];
    }

    const LocalFactorsArguments& arguments_;
    const LocalScratch scratch_;
    const FactorChunks chunks_;
    int64_t count_ = 0;  // points of the present neighbourhood
};

template <Profile P>
void local_factors(const LocalFactorsArguments& arguments) {
    const LocalSize size = {arguments.x.rows, arguments.x.columns, arguments.neighbours.columns,
                            arguments.factor.columns, arguments.threads};
    const Allocation allocation(bytes_of<LocalBuffers>(size));
    Carver carver(allocation.memory());
    const LocalBuffers buffers(carver, size);
    Shares points = shares_of_points(size);
    run_workers(points.workers(size.threads), [&](int worker) {
        LocalWorker<P> work(arguments, buffers.scratch_of(worker, size));
        points.for_each_item([&](int64_t point) { work.process(point); });
    });
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
