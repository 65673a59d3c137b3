// Portable SIMD layer: one vector type per element type, and the few operations on it that the compiler's
// vector extensions (GCC and clang) do not already express as plain arithmetic.
//
// The whole arithmetic part of the library is compiled once per instruction set. Each copy lives in its own
// namespace (KERNELCG_VARIANT) and uses vectors of KERNELCG_VECTOR_BYTES bytes; both come from the build system.
// Only code inside that namespace may be compiled with extended instruction sets: a shared inline function could
// otherwise be merged by the linker with its AVX-512 copy and crash on an older processor.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#else
#include <cmath>
#endif

#if !defined(KERNELCG_VARIANT) || !defined(KERNELCG_VECTOR_BYTES)
#error "compile with -DKERNELCG_VARIANT=<namespace> and -DKERNELCG_VECTOR_BYTES=<16, 32 or 64>"
#endif

#define KERNELCG_INLINE inline __attribute__((always_inline))

// Register tiles are small arrays of vectors. They stay in registers only when every loop over them is unrolled
// completely, which the optimiser does not do by itself for all of them.
#if defined(__clang__)
#define KERNELCG_UNROLL _Pragma("unroll")
#else
#define KERNELCG_UNROLL _Pragma("GCC unroll 16")
#endif

namespace kernelcg {
namespace KERNELCG_VARIANT {

template <class T>
struct VectorTypes;
template <>
struct VectorTypes<float> {
    typedef float Values __attribute__((vector_size(KERNELCG_VECTOR_BYTES), may_alias));
    typedef int32_t Bits __attribute__((vector_size(KERNELCG_VECTOR_BYTES), may_alias));
};
template <>
struct VectorTypes<double> {
    typedef double Values __attribute__((vector_size(KERNELCG_VECTOR_BYTES), may_alias));
    typedef int64_t Bits __attribute__((vector_size(KERNELCG_VECTOR_BYTES), may_alias));
};

template <class T>
using Vec = typename VectorTypes<T>::Values;

// Number of elements of type T in one vector.
template <class T>
constexpr int kLanes = KERNELCG_VECTOR_BYTES / sizeof(T);

template <class T>
KERNELCG_INLINE Vec<T> load(const T* address) {
    return *reinterpret_cast<const Vec<T>*>(address);
}

template <class T>
KERNELCG_INLINE void store(T* address, Vec<T> values) {
    *reinterpret_cast<Vec<T>*>(address) = values;
}

template <class T>
KERNELCG_INLINE Vec<T> broadcast(T value) {
    return value - Vec<T>{};
}

// values - *address. With AVX-512 the broadcast is part of the subtraction's memory operand; compilers prefer to share
// one broadcast register among several subtractions, but on Zen 4 that broadcast competes with the additions and the
// inner loop of the squared distances then takes 1.2 times as long.
#if KERNELCG_VECTOR_BYTES == 64
KERNELCG_INLINE Vec<float> subtract_broadcast(Vec<float> values, const float* address) {
    Vec<float> difference;
    asm("vsubps %2%{1to16%}, %1, %0" : "=v"(difference) : "v"(values), "m"(*address));
    return difference;
}
KERNELCG_INLINE Vec<double> subtract_broadcast(Vec<double> values, const double* address) {
    Vec<double> difference;
    asm("vsubpd %2%{1to8%}, %1, %0" : "=v"(difference) : "v"(values), "m"(*address));
    return difference;
}
#else
template <class T>
KERNELCG_INLINE Vec<T> subtract_broadcast(Vec<T> values, const T* address) {
    return values - *address;
}
#endif

template <class V>
KERNELCG_INLINE V minimum(V a, V b) {
    return a < b ? a : b;
}

template <class V>
KERNELCG_INLINE V maximum(V a, V b) {
    return a > b ? a : b;
}

// Sum of the lanes, in double precision.
template <class T>
KERNELCG_INLINE double sum_of_lanes(Vec<T> values) {
    double even = 0, odd = 0;
    KERNELCG_UNROLL for (int lane = 0; lane < kLanes<T>; lane += 2) {
        even += values[lane];
        odd += values[lane + 1];
    }
    return even + odd;
}

// values with the lanes l and l ^ Step exchanged.
template <int Step>
KERNELCG_INLINE Vec<double> exchange_lanes(Vec<double> values) {
#if defined(__clang__) && KERNELCG_VECTOR_BYTES == 64
    return __builtin_shufflevector(values, values, 0 ^ Step, 1 ^ Step, 2 ^ Step, 3 ^ Step, 4 ^ Step, 5 ^ Step, 6 ^ Step,
                                   7 ^ Step);
#elif defined(__clang__) && KERNELCG_VECTOR_BYTES == 32
    return __builtin_shufflevector(values, values, 0 ^ Step, 1 ^ Step, 2 ^ Step, 3 ^ Step);
#elif defined(__clang__)
    return __builtin_shufflevector(values, values, 0 ^ Step, 1 ^ Step);
#else
    VectorTypes<double>::Bits source;
    KERNELCG_UNROLL for (int lane = 0; lane < kLanes<double>; ++lane) source[lane] = lane ^ Step;
    return __builtin_shuffle(values, source);
#endif
}

// Sum of the lanes by halving: fewer instructions than one lane after the other, where many sums are to be formed.
template <int Step = kLanes<double> / 2>
KERNELCG_INLINE double total_of_lanes(Vec<double> values) {
    if constexpr (Step == 0)
        return values[0];
    else
        return total_of_lanes<Step / 2>(values + exchange_lanes<Step>(values));
}

KERNELCG_INLINE double square_root(double x) { return __builtin_sqrt(x); }

KERNELCG_INLINE Vec<float> square_root(Vec<float> x) {
#if KERNELCG_VECTOR_BYTES == 64
    return (Vec<float>)_mm512_sqrt_ps((__m512)x);
#elif KERNELCG_VECTOR_BYTES == 32
    return (Vec<float>)_mm256_sqrt_ps((__m256)x);
#elif defined(__x86_64__)
    return (Vec<float>)_mm_sqrt_ps((__m128)x);
#elif defined(__aarch64__)
    return (Vec<float>)vsqrtq_f32((float32x4_t)x);
#else
    for (int lane = 0; lane < kLanes<float>; ++lane) x[lane] = std::sqrt(x[lane]);
    return x;
#endif
}

KERNELCG_INLINE Vec<double> square_root(Vec<double> x) {
#if KERNELCG_VECTOR_BYTES == 64
    return (Vec<double>)_mm512_sqrt_pd((__m512d)x);
#elif KERNELCG_VECTOR_BYTES == 32
    return (Vec<double>)_mm256_sqrt_pd((__m256d)x);
#elif defined(__x86_64__)
    return (Vec<double>)_mm_sqrt_pd((__m128d)x);
#elif defined(__aarch64__)
    return (Vec<double>)vsqrtq_f64((float64x2_t)x);
#else
    for (int lane = 0; lane < kLanes<double>; ++lane) x[lane] = std::sqrt(x[lane]);
    return x;
#endif
}

// Constants of exp2_of_minus. The polynomial approximates 2^f on [-1/2, 1/2] and is exactly 1 at f = 0, so that
// k(x, x) is exactly 1 and the exponent `largest` gives exactly 0. Relative error 1.3e-7 (float, degree 5) and
// 3e-16 (double, degree 10); one more degree would cost a multiply-add per kernel entry and gain nothing that
// survives the rounding of the sum.
template <class T>
struct Exp2;
template <>
struct Exp2<float> {
    static constexpr float round_to_integer = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    static constexpr float largest = 127.0f;
    static constexpr int mantissa_bits = 23;
    static constexpr int degree = 5;
    static constexpr float coefficients[degree + 1] = {
        1.0f,           0.69314718056f, 0.240222347342f, 0.0555036970485f, 0.00967186983191f,
        0.00133867453f,
    };
};
template <>
struct Exp2<double> {
    static constexpr double round_to_integer = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double largest = 1023.0;
    static constexpr int mantissa_bits = 52;
    static constexpr int degree = 10;
    static constexpr double coefficients[degree + 1] = {
        1.0,
        0.69314718055994998286,
        0.2402265069591009822,
        0.055504108664447719166,
        0.0096181291076068885273,
        0.0013333558230164973899,
        0.00015403530441736050155,
        0.000015252657260200837064,
        1.3215442587921689653e-6,
        1.0208690299958305835e-7,
        7.0725859492692236999e-9,
    };
};

// 2^(-a) for 0 <= a <= Exp2<T>::largest (the caller clamps; at the bound the result is exactly 0).
// a = n - f with n the nearest integer; 2^f by polynomial; the exponent field is lowered by n with one shift and
// one integer addition, since n stands in the low bits of the rounded sum.
template <class T>
KERNELCG_INLINE Vec<T> exp2_of_minus(Vec<T> a) {
    using Constants = Exp2<T>;
    using Bits = typename VectorTypes<T>::Bits;
    const Vec<T> magic = broadcast<T>(Constants::round_to_integer);
    const Vec<T> shifted = magic - a;
    const Vec<T> fraction = (magic - shifted) - a;
    Vec<T> power = broadcast<T>(Constants::coefficients[Constants::degree]);
    KERNELCG_UNROLL for (int k = Constants::degree - 1; k >= 0; --k)
        power = power * fraction + broadcast<T>(Constants::coefficients[k]);
    return (Vec<T>)((Bits)power + ((Bits)shifted << Constants::mantissa_bits));
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
