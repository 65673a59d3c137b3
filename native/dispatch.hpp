// Which instruction-set variants exist, and which of them this processor can run.
#pragma once

#include <string>
#include <vector>

#include "interface.hpp"

namespace kernelcg {

struct Level {
    std::string name;
    bool available;
    std::string reason;      // why it is not available, else empty
    const Variant* variant;  // null when it was not compiled
};

// In increasing order: "baseline" (always available), "avx2", "avx512".
const std::vector<Level>& levels();

// Index of the fastest available level.
int best_level();

// Throws std::invalid_argument when the level does not exist or is not available.
const Variant& variant_at(int level);

}  // namespace kernelcg
