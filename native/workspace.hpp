// One allocation per call, cut into aligned pieces.
//
// The buffers of an operation are described once, by a constructor that takes pieces from a Carver. Run on a Carver
// without memory the same constructor merely counts, so that the reported workspace is by construction what the
// operation allocates.
#pragma once

#include <cstdint>
#include <new>

#include "simd.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector

class Carver {
public:
    explicit Carver(char* memory = nullptr) : memory_(memory) {}

    // The next `count` elements, on a fresh cache line. Null while only counting.
    template <class Element>
    KERNELCG_INLINE Element* take(int64_t count) {
        char* piece = memory_ ? memory_ + used_ : nullptr;
        used_ += (count * int64_t(sizeof(Element)) + kAlignment - 1) / kAlignment * kAlignment;
        return reinterpret_cast<Element*>(piece);
    }

    KERNELCG_INLINE int64_t bytes() const { return used_; }

private:
    char* memory_;
    int64_t used_ = 0;
};

// Uninitialised aligned memory; throws std::bad_alloc.
class Allocation {
public:
    KERNELCG_INLINE explicit Allocation(int64_t bytes) {
        memory_ = static_cast<char*>(::operator new(size_t(bytes), std::align_val_t(kAlignment)));
    }
    KERNELCG_INLINE ~Allocation() { ::operator delete(memory_, std::align_val_t(kAlignment)); }
    Allocation(const Allocation&) = delete;
    Allocation& operator=(const Allocation&) = delete;

    KERNELCG_INLINE char* memory() const { return memory_; }

private:
    char* memory_;
};

// Bytes that Buffers(carver, size) takes.
template <class Buffers, class Size>
KERNELCG_INLINE int64_t bytes_of(const Size& size) {
    Carver counting;
    Buffers buffers(counting, size);
    (void)buffers;
    return counting.bytes();
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
