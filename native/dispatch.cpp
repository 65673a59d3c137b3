#include "dispatch.hpp"

#include <stdexcept>

#if defined(__x86_64__)
#include "processor.hpp"
#endif

namespace kernelcg {

namespace baseline {
const Variant* variant();
}
#if defined(KERNELCG_HAS_AVX2)
namespace avx2 {
const Variant* variant();
}
#endif
#if defined(KERNELCG_HAS_AVX512)
namespace avx512 {
const Variant* variant();
}
#endif

namespace {

Level compiled(const char* name, const Variant* variant, bool supported) {
    const char* reason = supported ? "" : "this processor (or its operating system) does not support it";
    return {name, supported, reason, variant};
}

[[maybe_unused]] Level missing(const char* name) {
    return {name, false, "it was not compiled in (other architecture, or a compiler without it)", nullptr};
}

Level avx2_level() {
#if defined(KERNELCG_HAS_AVX2)
    return compiled("avx2", avx2::variant(), this_processor().avx2_and_fma);
#else
    return missing("avx2");
#endif
}

Level avx512_level() {
#if defined(KERNELCG_HAS_AVX512)
    return compiled("avx512", avx512::variant(), this_processor().avx512);
#else
    return missing("avx512");
#endif
}

std::vector<Level> find_levels() {
    return {compiled("baseline", baseline::variant(), true), avx2_level(), avx512_level()};
}

}  // namespace

bool counts_bits_of_words() {
#if defined(__x86_64__)
    static const bool found = this_processor().avx512_popcount;
    return found;
#else
    return false;
#endif
}

const std::vector<Level>& levels() {
    static const std::vector<Level> found = find_levels();
    return found;
}

int best_level() {
    int best = int(levels().size()) - 1;
    while (!levels()[size_t(best)].available) --best;
    return best;
}

const Variant& variant_at(int level) {
    if (level < 0 || level >= int(levels().size()))
        throw std::invalid_argument("level must be an index into levels(), from 0 to " +
                                    std::to_string(levels().size() - 1) + ", not " + std::to_string(level) + ".");
    const Level& chosen = levels()[size_t(level)];
    if (!chosen.available)
        throw std::invalid_argument("Instruction set level '" + chosen.name + "' is not available: " + chosen.reason +
                                    ".");
    return *chosen.variant;
}

}  // namespace kernelcg
