// Compiled once per instruction set. Exports one function, which returns the table of that set's operations.
#include "block.hpp"
#include "gradient.hpp"
#include "interface.hpp"
#include "local_factors.hpp"
#include "peak_flops.hpp"
#include "product.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {
namespace {

// Turns the run-time profile into a template argument: calls Operation<profile>::run(arguments).
template <template <Profile> class Operation, class Arguments>
void for_radial_profile(const Arguments& arguments) {
    switch (arguments.profile) {
        case Profile::rbf: return Operation<Profile::rbf>::run(arguments);
        case Profile::matern12: return Operation<Profile::matern12>::run(arguments);
        case Profile::matern32: return Operation<Profile::matern32>::run(arguments);
        case Profile::matern52: return Operation<Profile::matern52>::run(arguments);
        case Profile::tanimoto: return;  // refused by the caller
    }
}

template <template <Profile> class Operation, class Arguments>
void for_profile(const Arguments& arguments) {
    if (arguments.profile == Profile::tanimoto) return Operation<Profile::tanimoto>::run(arguments);
    for_radial_profile<Operation>(arguments);
}

template <Profile P>
struct RunProduct {
    template <class T>
    static void run(const ProductArguments<T>& arguments) {
        product<P, T>(arguments);
    }
};

template <Profile P>
struct RunGradient {
    template <class T>
    static void run(const GradientArguments<T>& arguments) {
        gradient<P, T>(arguments);
    }
};

template <Profile P>
struct RunBlock {
    template <class T>
    static void run(const BlockArguments<T>& arguments) {
        block<P, T>(arguments);
    }
};

template <Profile P>
struct RunLocalFactors {
    static void run(const LocalFactorsArguments& arguments) { local_factors<P>(arguments); }
};

template <class T>
constexpr Operations<T> operations() {
    return {
        for_profile<RunProduct, ProductArguments<T>>,
        for_radial_profile<RunGradient, GradientArguments<T>>,
        for_profile<RunBlock, BlockArguments<T>>,
        product_workspace_bytes<T>,
        gradient_workspace_bytes<T>,
        panels_bytes<T>,
        pack_points<T>,
        scale<T>,
        fma_rate<T>,
        farthest_square<T>,
    };
}

constexpr Variant kVariant = {
    operations<float>(),
    operations<double>(),
    for_radial_profile<RunLocalFactors, LocalFactorsArguments>,
    local_factors_workspace_bytes,
};

}  // namespace

const Variant* variant() { return &kVariant; }

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
