// Points in the layout that products and gradients read, packed once and used by any number of calls.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "interface.hpp"

namespace kernelcg {

// Immutable. The layout depends on the instruction set, so packed points belong to one level.
class PackedPoints {
public:
    // Packs the rows of a matrix as they are: numbers, or words of bits in the place of numbers (see bits.hpp).
    PackedPoints(const MatrixView<double>& points, int threads, int level);
    PackedPoints(const MatrixView<float>& points, int threads, int level);

    // These points with feature r multiplied by factors[r]: in double precision, then rounded to the precision asked
    // for. Throws std::invalid_argument for points that have been rounded to single precision already.
    PackedPoints scaled(const double* factors, bool single) const;

    int64_t rows() const { return rows_; }
    int64_t features() const { return features_; }
    bool single() const { return single_; }
    int level() const { return level_; }
    int64_t bytes() const { return bytes_; }

    // Throws std::invalid_argument unless the points are stored in T.
    template <class T>
    PackedMatrix<T> view() const;

private:
    static constexpr std::align_val_t kCacheLine{64};

    struct Free {
        void operator()(void* memory) const { ::operator delete(memory, kCacheLine); }
    };

    // Memory of the right size, to be filled.
    PackedPoints(int64_t rows, int64_t features, bool single, int threads, int level);

    int64_t rows_;
    int64_t features_;
    bool single_;
    int threads_;
    int level_;
    int64_t bytes_;
    std::unique_ptr<void, Free> memory_;
};

}  // namespace kernelcg
