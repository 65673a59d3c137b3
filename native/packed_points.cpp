#include "packed_points.hpp"

#include <stdexcept>
#include <type_traits>

#include "dispatch.hpp"

namespace kernelcg {
namespace {

int64_t packed_bytes(int64_t rows, int64_t features, bool single, const Variant& variant) {
    return single ? variant.single_precision.panels_bytes(rows, features)
                  : variant.double_precision.panels_bytes(rows, features);
}

}  // namespace

PackedPoints::PackedPoints(int64_t rows, int64_t features, bool single, int threads, int level)
    : rows_(rows), features_(features), single_(single), threads_(threads), level_(level),
      bytes_(packed_bytes(rows, features, single, variant_at(level))), memory_(::operator new(size_t(bytes_), kCacheLine)) {}

PackedPoints::PackedPoints(const MatrixView<double>& points, int threads, int level)
    : PackedPoints(points.rows, points.columns, false, threads, level) {
    variant_at(level).double_precision.pack(points, static_cast<double*>(memory_.get()), threads);
}

PackedPoints::PackedPoints(const MatrixView<float>& points, int threads, int level)
    : PackedPoints(points.rows, points.columns, true, threads, level) {
    variant_at(level).single_precision.pack(points, static_cast<float*>(memory_.get()), threads);
}

PackedPoints PackedPoints::scaled(const double* factors, bool single) const {
    const PackedMatrix<double> source = view<double>();
    PackedPoints result(rows_, features_, single, threads_, level_);
    const Variant& variant = variant_at(level_);
    if (single)
        variant.single_precision.scale(source, factors, static_cast<float*>(result.memory_.get()), threads_);
    else
        variant.double_precision.scale(source, factors, static_cast<double*>(result.memory_.get()), threads_);
    return result;
}

template <class T>
PackedMatrix<T> PackedPoints::view() const {
    if (single_ != std::is_same<T, float>::value)
        throw std::invalid_argument(single_ ? "These panels hold float32 numbers, and float64 is needed."
                                            : "These panels hold float64 numbers, and float32 is needed.");
    return {static_cast<const T*>(memory_.get()), rows_, features_};
}

template PackedMatrix<float> PackedPoints::view() const;
template PackedMatrix<double> PackedPoints::view() const;

}  // namespace kernelcg
