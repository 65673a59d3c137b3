// The radial profiles k = profile(s), s = |x - y|^2, and the weights of their lengthscale derivatives.
//
// Every profile is a polynomial times 2^(-a) with the decay exponent a = c s (RBF) or a = c sqrt(s) (Matern).
// The exponent is clamped where 2^(-a) becomes exactly 0, and the polynomials are written in the clamped a, so
// that a huge s gives 0 and never inf * 0.
//
// With w = -2 profile'(s) the derivative with respect to log l_r is w (x_r - y_r)^2, and with respect to the log of
// one lengthscale shared by all features w s.
#pragma once

#include "interface.hpp"
#include "simd.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

constexpr double kLog2E = 1.4426950408889634074;
constexpr double kLn2 = 0.69314718055994530942;
constexpr double kSqrt3 = 1.7320508075688772935;
constexpr double kSqrt5 = 2.2360679774997896964;

// Factor between s (RBF) or sqrt(s) (Matern) and the decay exponent in base 2.
constexpr double decay_rate(Profile profile) {
    return profile == Profile::rbf        ? 0.5 * kLog2E
           : profile == Profile::matern12 ? kLog2E
           : profile == Profile::matern32 ? kSqrt3 * kLog2E
                                          : kSqrt5 * kLog2E;
}

template <Profile P, class T>
KERNELCG_INLINE Vec<T> decay_exponent(Vec<T> s) {
    if constexpr (P != Profile::rbf) s = square_root(s);
    return minimum(s * broadcast<T>(T(decay_rate(P))), broadcast<T>(Exp2<T>::largest));
}

// k from the decay exponent a and e = 2^(-a).
template <Profile P, class T>
KERNELCG_INLINE Vec<T> value_of(Vec<T> a, Vec<T> e) {
    const Vec<T> one = broadcast<T>(T(1));
    const Vec<T> ln2 = broadcast<T>(T(kLn2));
    if constexpr (P == Profile::matern32) return (a * ln2 + one) * e;
    if constexpr (P == Profile::matern52) return ((a * broadcast<T>(T(kLn2 * kLn2 / 3)) + ln2) * a + one) * e;
    return e;
}

// w = -2 profile'(s).
template <Profile P, class T>
KERNELCG_INLINE Vec<T> weight_of(Vec<T> s, Vec<T> a, Vec<T> e) {
    if constexpr (P == Profile::matern12) {
        // 1/r diverges at coincident points, where it multiplies a squared difference of 0: any finite value will do.
        const Vec<T> tiny = broadcast<T>(sizeof(T) == 4 ? T(1e-18) : T(1e-150));
        return e / maximum(square_root(s), tiny);
    }
    if constexpr (P == Profile::matern32) return broadcast<T>(T(3)) * e;
    if constexpr (P == Profile::matern52)
        return (a * broadcast<T>(T(kLn2 * 5 / 3)) + broadcast<T>(T(5.0 / 3))) * e;
    return e;
}

// w s, without a division and bounded for every s.
template <Profile P, class T>
KERNELCG_INLINE Vec<T> weight_times_s(Vec<T> a, Vec<T> e) {
    const Vec<T> u = a * broadcast<T>(T(kLn2));  // 2^(-a) = exp(-u)
    if constexpr (P == Profile::rbf) return (u + u) * e;
    if constexpr (P == Profile::matern12) return u * e;
    if constexpr (P == Profile::matern32) return u * u * e;
    return (u * broadcast<T>(T(1.0 / 3)) + broadcast<T>(T(1.0 / 3))) * u * u * e;
}

template <Profile P, class T>
KERNELCG_INLINE Vec<T> kernel_value(Vec<T> s) {
    const Vec<T> a = decay_exponent<P, T>(s);
    return value_of<P, T>(a, exp2_of_minus<T>(a));
}

template <class T>
struct ValueAndDerivative {
    Vec<T> value;
    Vec<T> derivative;  // w for one lengthscale per feature, w s for a shared one
};

template <Profile P, bool PerDimension, class T>
KERNELCG_INLINE ValueAndDerivative<T> kernel_value_and_derivative(Vec<T> s) {
    const Vec<T> a = decay_exponent<P, T>(s);
    const Vec<T> e = exp2_of_minus<T>(a);
    if constexpr (PerDimension)
        return {value_of<P, T>(a, e), weight_of<P, T>(s, a, e)};
    else
        return {value_of<P, T>(a, e), weight_times_s<P, T>(a, e)};
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
