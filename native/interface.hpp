// What the instruction-set variants offer to the rest of the module: plain data and function pointers only, so
// that this header compiles to nothing that depends on the instruction set.
#pragma once

#include <cstdint>

namespace kernelcg {

// The radial ones, of |x - y|^2, come first; of tanimoto there are products and blocks only (see bits.hpp).
enum class Profile : int { rbf = 0, matern12 = 1, matern32 = 2, matern52 = 3, tanimoto = 4 };
constexpr int kRadialProfiles = 4;
constexpr int kProfileCount = 5;

// Whether the processor has AVX-512's instructions that count the bits of every word of a vector.
bool counts_bits_of_words();

// Row-major contiguous matrix owned by the caller.
template <class T>
struct MatrixView {
    const T* data;
    int64_t rows;
    int64_t columns;
};

// Matrix in the panel layout of one variant and element type (see packing.hpp), on a cache line.
template <class T>
struct PackedMatrix {
    const T* data;
    int64_t rows;
    int64_t columns;
};

// Inputs are checked by the caller: shapes agree, values are finite, threads >= 1.
// `symmetric` means y = x: each pair is evaluated once and serves both of its rows. `local` means that pairs whose values
// are negligible may be left out (see near_panels.hpp).

// out (x.rows by v.columns) = K(x, y) v. Where there is a w, with as many columns and not symmetric, in the same pass
// also out_below (y.rows by w.columns) = K(y, x) w.
template <class T>
struct ProductArguments {
    PackedMatrix<T> x, y;
    MatrixView<T> v;
    double* out;
    bool symmetric;
    bool local;
    Profile profile;
    int threads;
    MatrixView<T> w = {nullptr, 0, 0};
    double* out_below = nullptr;
};

// With M = left rightᵀ + factor * weights: out[0] = sum_ij M_ij k_ij, and out[1...] the derivatives of that sum with
// respect to the logarithms of the lengthscales: one per feature, or a single shared one. The weights are symmetric,
// for symmetric problems only, and may be absent (null).
template <class T>
struct GradientArguments {
    PackedMatrix<T> x, y;
    MatrixView<T> left, right, weights;
    T factor;
    double* out;
    bool symmetric;
    bool local;
    bool per_dimension;
    Profile profile;
    int threads;
};

// out (x.rows by y.rows) = K(x, y).
template <class T>
struct BlockArguments {
    MatrixView<T> x, y;
    T* out;
    Profile profile;
    int threads;
};

// Row i of out (x.rows by neighbours.columns + 1) is R_JJ^-1 e_i / sqrt(e_i^T R_JJ^-1 e_i) for the neighbours J of
// point i and the point itself, its entry the last one, where R = S (variance K(x, x) - F F^T) S + D. A neighbour of -1
// is none and has entry 0.
struct LocalFactorsArguments {
    MatrixView<double> x;
    MatrixView<int64_t> neighbours;
    MatrixView<double> factor;  // F
    const double* scale;        // S
    const double* diagonal;     // D, positive
    double* out;
    double variance;
    Profile profile;
    int threads;
};

// Sizes that determine the memory of local factors (rank = columns of F).
struct LocalSize {
    int64_t points;
    int64_t features;
    int64_t neighbours;
    int64_t rank;
    int threads;
};

// Sizes that determine the memory of a product (vectors = columns of v) or of a gradient (vectors = columns of left).
struct ProblemSize {
    int64_t rows;
    int64_t columns;
    int64_t features;
    int64_t vectors;
    int threads;
    bool symmetric;
    bool both_ways = false;  // a product of two sets of points in both directions

    // Whether the values of a strip are also multiplied with vectors of its rows.
    constexpr bool has_column_sums() const { return symmetric || both_ways; }
};

template <class T>
struct Operations {
    void (*product)(const ProductArguments<T>&);
    void (*gradient)(const GradientArguments<T>&);
    void (*block)(const BlockArguments<T>&);
    int64_t (*product_workspace_bytes)(const ProblemSize&);
    int64_t (*gradient_workspace_bytes)(const ProblemSize&);
    int64_t (*panels_bytes)(int64_t rows, int64_t columns);
    // target = source in panels.
    void (*pack)(const MatrixView<T>& source, T* target, int threads);
    // target, in the panels of T = source with column c multiplied by factors[c], rounded to T.
    void (*scale)(const PackedMatrix<double>& source, const double* factors, T* target, int threads);
    double (*fma_rate)(int threads);
    // Squared distance from which on values of a radial profile are negligible.
    double (*farthest_square)(Profile profile);
};

// Local factors exist in double precision only: they invert nearly singular matrices.
struct Variant {
    Operations<float> single_precision;
    Operations<double> double_precision;
    void (*local_factors)(const LocalFactorsArguments&);
    int64_t (*local_factors_workspace_bytes)(const LocalSize&);
};

}  // namespace kernelcg
