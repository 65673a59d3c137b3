// Python bindings: checks the arguments, releases the interpreter lock and calls the chosen variant.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "call.hpp"
#include "dispatch.hpp"
#include "packed_points.hpp"
#include "thread_pool.hpp"

namespace nb = nanobind;

namespace kernelcg {
namespace {

template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
const Operations<T>& operations_at(int level) {
    if constexpr (sizeof(T) == sizeof(float))
        return variant_at(level).single_precision;
    else
        return variant_at(level).double_precision;
}

template <class T>
MatrixView<T> view(const Matrix<const T>& matrix) {
    return {matrix.data(), int64_t(matrix.shape(0)), int64_t(matrix.shape(1))};
}

// Throws std::invalid_argument, which Python sees as ValueError.
void require_equal(int64_t found, int64_t expected, const std::string& what) {
    if (found != expected)
        throw std::invalid_argument(what + " must be " + std::to_string(expected) + ", not " + std::to_string(found) +
                                    ".");
}

Profile checked_profile(int profile, int count = kProfileCount) {
    if (profile < 0 || profile >= count)
        throw std::invalid_argument("profile must be from 0 to " + std::to_string(count - 1) + ", not " +
                                    std::to_string(profile) + ".");
    return Profile(profile);
}

int checked_threads(int threads) {
    if (threads < 1) throw std::invalid_argument("threads must be at least 1, not " + std::to_string(threads) + ".");
    return threads;
}

bool interpreter_is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

// Runs Python's handlers of the signals that have come, if this is Python's main thread; true if one has raised.
bool signal_handler_raised() {
    if (interpreter_is_ending()) return false;  // its lock is not to be had any more
    const nb::gil_scoped_acquire acquire;
    return PyErr_CheckSignals() != 0;
}

// Does work without the interpreter's lock. What a signal handler raises meanwhile, such as KeyboardInterrupt, ends the
// work early and is raised from here.
template <class Work>
void interruptible(const Work& work) {
    {
        const nb::gil_scoped_release release;
        Call call(signal_handler_raised);
        work();
    }
    if (PyErr_Occurred()) throw nb::python_error();
}

template <class T>
void construct_panels(PackedPoints* panels, Matrix<const T> X, int threads, int level) {
    const MatrixView<T> points = view(X);
    checked_threads(threads);
    nb::gil_scoped_release release;
    new (panels) PackedPoints(points, threads, level);
}

PackedPoints scaled_panels(const PackedPoints& panels, Vector<const double> factors, bool single) {
    require_equal(int64_t(factors.shape(0)), panels.features(), "The length of factors");
    nb::gil_scoped_release release;
    return panels.scaled(factors.data(), single);
}

// The packed points, which must be of this level and hold numbers of type T.
template <class T>
PackedMatrix<T> packed_at(const PackedPoints& panels, int level) {
    if (panels.level() != level)
        throw std::invalid_argument("Panels made for level " + std::to_string(panels.level()) +
                                    " cannot be used at level " + std::to_string(level) + ".");
    return panels.view<T>();
}

// The second point set: B, or A itself when B is None.
template <class T>
PackedMatrix<T> second_points(const PackedPoints& A, const PackedPoints* B, int level) {
    if (!B) return packed_at<T>(A, level);
    require_equal(B->features(), A.features(), "The number of features of B");
    return packed_at<T>(*B, level);
}

template <class T>
void product(const PackedPoints& A, const PackedPoints* B, Matrix<const T> V, Matrix<double> out, int profile,
             int threads, int level, bool local) {
    const Operations<T>& operations = operations_at<T>(level);
    const ProductArguments<T> arguments = {packed_at<T>(A, level),
                                           second_points<T>(A, B, level),
                                           view(V),
                                           out.data(),
                                           !B,
                                           local,
                                           checked_profile(profile),
                                           checked_threads(threads)};
    require_equal(arguments.v.rows, arguments.y.rows, "The number of rows of V");
    require_equal(int64_t(out.shape(0)), arguments.x.rows, "The number of rows of out");
    require_equal(int64_t(out.shape(1)), arguments.v.columns, "The number of columns of out");
    if (out.size() > 0) interruptible([&] { operations.product(arguments); });
}

template <class T>
void product_both_ways(const PackedPoints& A, const PackedPoints& B, Matrix<const T> V, Matrix<const T> W,
                       Matrix<double> out, Matrix<double> below, int profile, int threads, int level,
                       bool local) {
    const Operations<T>& operations = operations_at<T>(level);
    const ProductArguments<T> arguments = {packed_at<T>(A, level),
                                           second_points<T>(A, &B, level),
                                           view(V),
                                           out.data(),
                                           false,
                                           local,
                                           checked_profile(profile),
                                           checked_threads(threads),
                                           view(W),
                                           below.data()};
    require_equal(arguments.v.rows, arguments.y.rows, "The number of rows of V");
    require_equal(arguments.w.rows, arguments.x.rows, "The number of rows of W");
    require_equal(arguments.w.columns, arguments.v.columns, "The number of columns of W");
    require_equal(int64_t(out.shape(0)), arguments.x.rows, "The number of rows of out");
    require_equal(int64_t(out.shape(1)), arguments.v.columns, "The number of columns of out");
    require_equal(int64_t(below.shape(0)), arguments.y.rows, "The number of rows of below");
    require_equal(int64_t(below.shape(1)), arguments.v.columns, "The number of columns of below");
    if (out.size() > 0 && below.size() > 0) interruptible([&] { operations.product(arguments); });
}

template <class T>
void gradient(const PackedPoints& A, const PackedPoints* B, Matrix<const T> L, Matrix<const T> R, Matrix<const T> C,
              double factor, Vector<double> out, bool per_dimension, int profile, int threads, int level, bool local) {
    const Operations<T>& operations = operations_at<T>(level);
    const MatrixView<T> weights = C.is_valid() ? view(C) : MatrixView<T>{nullptr, 0, 0};
    const GradientArguments<T> arguments = {packed_at<T>(A, level),
                                            second_points<T>(A, B, level),
                                            view(L),
                                            view(R),
                                            weights,
                                            T(factor),
                                            out.data(),
                                            !B,
                                            local,
                                            per_dimension,
                                            checked_profile(profile, kRadialProfiles),
                                            checked_threads(threads)};
    if (weights.data) {
        require_equal(weights.rows, B ? -1 : arguments.x.rows, "The number of rows of C (B must be None)");
        require_equal(weights.columns, arguments.x.rows, "The number of columns of C");
    }
    require_equal(arguments.left.rows, arguments.x.rows, "The number of rows of L");
    require_equal(arguments.right.rows, arguments.y.rows, "The number of rows of R");
    require_equal(arguments.right.columns, arguments.left.columns, "The number of columns of R");
    require_equal(int64_t(out.shape(0)), per_dimension ? 1 + arguments.x.columns : 2, "The length of out");
    interruptible([&] { operations.gradient(arguments); });
}

template <class T>
void block(Matrix<const T> X, Matrix<const T> Y, Matrix<T> out, int profile, int threads, int level) {
    const Operations<T>& operations = operations_at<T>(level);
    const BlockArguments<T> arguments = {view(X), view(Y), out.data(), checked_profile(profile),
                                         checked_threads(threads)};
    require_equal(arguments.y.columns, arguments.x.columns, "The number of columns of Y");
    require_equal(int64_t(out.shape(0)), arguments.x.rows, "The number of rows of out");
    require_equal(int64_t(out.shape(1)), arguments.y.rows, "The number of columns of out");
    if (out.size() > 0) interruptible([&] { operations.block(arguments); });
}

void local_factors(Matrix<const double> X, Matrix<const int64_t> neighbours, Matrix<const double> F,
                   Vector<const double> scale, Vector<const double> diagonal, Matrix<double> out, double variance,
                   int profile, int threads, int level) {
    const Variant& variant = variant_at(level);
    const LocalFactorsArguments arguments = {
        view(X),  view(neighbours),         view(F), scale.data(), diagonal.data(), out.data(),
        variance, checked_profile(profile, kRadialProfiles), checked_threads(threads)};
    require_equal(arguments.neighbours.rows, arguments.x.rows, "The number of rows of neighbours");
    require_equal(arguments.factor.rows, arguments.x.rows, "The number of rows of F");
    require_equal(int64_t(scale.shape(0)), arguments.x.rows, "The length of scale");
    require_equal(int64_t(diagonal.shape(0)), arguments.x.rows, "The length of diagonal");
    require_equal(int64_t(out.shape(0)), arguments.x.rows, "The number of rows of out");
    require_equal(int64_t(out.shape(1)), arguments.neighbours.columns + 1, "The number of columns of out");
    if (out.size() > 0) interruptible([&] { variant.local_factors(arguments); });
}

// The largest count over the compiled variants, which differ a little in their padding.
template <class Count>
int64_t largest_over_levels(int itemsize, const Count& count) {
    if (itemsize != int(sizeof(float)) && itemsize != int(sizeof(double)))
        throw std::invalid_argument("itemsize must be 4 or 8, not " + std::to_string(itemsize) + ".");
    int64_t bytes = 0;
    for (const Level& level : levels()) {
        if (!level.variant) continue;
        bytes = std::max(bytes, itemsize == int(sizeof(float)) ? count(level.variant->single_precision)
                                                               : count(level.variant->double_precision));
    }
    return bytes;
}

int64_t workspace_bytes(int64_t n, int64_t m, int64_t d, int64_t t, int itemsize, int threads, bool symmetric,
                        bool both_ways) {
    const ProblemSize size = {n, m, d, t, checked_threads(threads), symmetric, both_ways};
    const auto count = [&](const auto& operations) { return operations.product_workspace_bytes(size); };
    return largest_over_levels(itemsize, count);
}

int64_t gradient_workspace_bytes(int64_t n, int64_t m, int64_t d, int64_t q, int itemsize, int threads,
                                 bool symmetric) {
    const ProblemSize size = {n, m, d, q, checked_threads(threads), symmetric};
    const auto count = [&](const auto& operations) { return operations.gradient_workspace_bytes(size); };
    return largest_over_levels(itemsize, count);
}

int64_t local_factors_workspace_bytes(int64_t n, int64_t d, int64_t q, int64_t m, int threads) {
    const LocalSize size = {n, d, q, m, checked_threads(threads)};
    int64_t bytes = 0;
    for (const Level& level : levels())
        if (level.variant) bytes = std::max(bytes, level.variant->local_factors_workspace_bytes(size));
    return bytes;
}

int64_t panels_bytes(int64_t n, int64_t d, int itemsize) {
    const auto count = [&](const auto& operations) { return operations.panels_bytes(n, d); };
    return largest_over_levels(itemsize, count);
}

double fma_rate(bool single, int threads, int level) {
    const Variant& variant = variant_at(level);
    checked_threads(threads);
    nb::gil_scoped_release release;
    return single ? variant.single_precision.fma_rate(threads) : variant.double_precision.fma_rate(threads);
}

// The same for every instruction set.
double farthest(int profile, bool single) {
    const Profile radial = checked_profile(profile, kRadialProfiles);
    const Variant& variant = variant_at(best_level());
    return std::sqrt(single ? variant.single_precision.farthest_square(radial)
                            : variant.double_precision.farthest_square(radial));
}

std::vector<std::tuple<std::string, bool, std::string>> level_descriptions() {
    std::vector<std::tuple<std::string, bool, std::string>> descriptions;
    for (const Level& level : levels()) descriptions.emplace_back(level.name, level.available, level.reason);
    return descriptions;
}

// Arrays are taken as they are: a silent conversion would cost a copy, and lose the result when it concerns `out`.
auto exact(const char* name) { return nb::arg(name).noconvert(); }
auto exact_or_none(const char* name) { return nb::arg(name).noconvert().none(); }

template <class T>
void define_operations(nb::module_& module) {
    using nb::literals::operator""_a;
    module.def("product", &product<T>, "A"_a, exact_or_none("B"), exact("V"), exact("out"), "profile"_a, "threads"_a,
               "level"_a, "local"_a = false,
               "out = K(A, B) V for Panels A and B; B = None means B = A and evaluates each pair once. local: leave out "
               "tiles of negligible values, as many as the order of the points allows.");
    module.def("product_both_ways", &product_both_ways<T>, "A"_a, "B"_a, exact("V"), exact("W"), exact("out"),
               exact("below"), "profile"_a, "threads"_a, "level"_a, "local"_a = false,
               "out = K(A, B) V and below = K(B, A) W for Panels A and B, each pair evaluated once.");
    module.def("gradient", &gradient<T>, "A"_a, exact_or_none("B"), exact("L"), exact("R"), exact_or_none("C"),
               "factor"_a, exact("out"), "per_dimension"_a, "profile"_a, "threads"_a, "level"_a, "local"_a = false,
               "With M = L R^T + factor C (C symmetric or None): out[0] = sum_ij M_ij k_ij for Panels A and B, out[1:] "
               "its derivatives with respect to the log lengthscales: one per feature (per_dimension) or a single "
               "shared one.");
    module.def("block", &block<T>, exact("X"), exact("Y"), exact("out"), "profile"_a, "threads"_a, "level"_a,
               "out = K(X, Y).");
}

void define_panels(nb::module_& module) {
    using nb::literals::operator""_a;
    nb::class_<PackedPoints>(module, "Panels", "Points packed for products and gradients at one level; immutable.")
        .def("__init__", &construct_panels<double>, exact("X"), "threads"_a, "level"_a,
             "Pack the rows of a matrix; `scaled`, for float64 only, uses as many threads.")
        .def("__init__", &construct_panels<float>, exact("X"), "threads"_a, "level"_a)
        .def("scaled", &scaled_panels, exact("factors"), "single"_a,
             "Return Panels with feature r multiplied by factors[r] and then rounded to float32 (single) or not.")
        .def_prop_ro("rows", &PackedPoints::rows)
        .def_prop_ro("features", &PackedPoints::features)
        .def_prop_ro("single", &PackedPoints::single, "Whether the numbers are float32; else they are float64.")
        .def_prop_ro("level", &PackedPoints::level)
        .def_prop_ro("bytes", &PackedPoints::bytes, "Memory that the packed points occupy.");
    module.def("panels_bytes", &panels_bytes, "n"_a, "d"_a, "itemsize"_a,
               "Upper bound on the bytes of Panels of n points with d features.");
}

}  // namespace
}  // namespace kernelcg

NB_MODULE(_native, module) {
    using nb::literals::operator""_a;
    module.doc() = "Matrix-free kernel products and gradients on the CPU, which Ctrl-C ends early.";
    nb::set_leak_warnings(false);  // Panels that still exist when the interpreter ends do no harm
    kernelcg::define_panels(module);
    kernelcg::define_operations<float>(module);
    kernelcg::define_operations<double>(module);
    module.def("local_factors", &kernelcg::local_factors, kernelcg::exact("X"), kernelcg::exact("neighbours"),
               kernelcg::exact("F"), kernelcg::exact("scale"), kernelcg::exact("diagonal"), kernelcg::exact("out"),
               "variance"_a, "profile"_a, "threads"_a, "level"_a,
               "out[i] = R_JJ^-1 e_i / sqrt(e_i^T R_JJ^-1 e_i), J = neighbours[i] and i, of R = S (variance K - F F^T) "
               "S + D; neighbours must be -1 (none) or rows of X.");
    module.def("levels", &kernelcg::level_descriptions,
               "(name, available, reason why not) for each instruction set level.");
    module.def("farthest", &kernelcg::farthest, "profile"_a, "single"_a,
               "Distance, in lengthscales, from which on values are negligible: those that `local` work leaves out.");
    module.def("best_level", &kernelcg::best_level, "Index of the fastest available level.");
    module.def("threads_started", &kernelcg::threads_started,
               "Threads that this process has started to help with calls; they wait for the next one.");
    module.def("workspace_bytes", &kernelcg::workspace_bytes, "n"_a, "m"_a, "d"_a, "t"_a, "itemsize"_a, "threads"_a,
               "symmetric"_a, "both_ways"_a = false,
               "Upper bound on the bytes that product or product_both_ways allocates, Panels not counted.");
    module.def("gradient_workspace_bytes", &kernelcg::gradient_workspace_bytes, "n"_a, "m"_a, "d"_a, "q"_a,
               "itemsize"_a, "threads"_a, "symmetric"_a,
               "Upper bound on the bytes that gradient allocates, Panels not counted.");
    module.def("local_factors_workspace_bytes", &kernelcg::local_factors_workspace_bytes, "n"_a, "d"_a, "q"_a, "m"_a,
               "threads"_a, "Upper bound on the bytes that local_factors allocates.");
    module.def("fma_rate", &kernelcg::fma_rate, "single"_a, "threads"_a, "level"_a,
               "Measured peak of multiply-adds per second (takes about 0.2 s).");
}
