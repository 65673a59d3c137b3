// Thread-level parallelism. Work is divided among numbered workers by formulas that depend only on the number of
// workers asked for; each worker owns its buffers. Results are therefore the same in every run, and correct also
// when the OpenMP runtime grants fewer threads than workers or when OpenMP is absent.
#pragma once

#include <cstdint>

#include "simd.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

// Calls task(worker) for worker = 0 ... workers-1. Tasks must not throw: memory is allocated beforehand.
template <class Task>
KERNELCG_INLINE void run_workers(int workers, const Task& task) {
#pragma omp parallel for schedule(static, 1) num_threads(workers) if (workers > 1)
    for (int worker = 0; worker < workers; ++worker) task(worker);
}

struct Range {
    int64_t begin;
    int64_t end;
};

// The worker's share of `count` equal items: contiguous, sizes differing by at most one.
KERNELCG_INLINE Range share_of(int64_t count, int worker, int workers) {
    return {count * worker / workers, count * (worker + 1) / workers};
}

// The block that a worker treats in a given round. In a triangle block b is smaller than block b - 1, so the order
// of the workers is reversed in every second round (0 1 1 0 0 1 ...): sums stay level without a dynamic schedule.
KERNELCG_INLINE int64_t block_of_round(int64_t round, int worker, int workers) {
    return round * workers + (round % 2 == 0 ? worker : workers - 1 - worker);
}

KERNELCG_INLINE int64_t divide_up(int64_t count, int64_t step) { return (count + step - 1) / step; }
KERNELCG_INLINE int64_t round_up(int64_t count, int64_t step) { return divide_up(count, step) * step; }
KERNELCG_INLINE int64_t round_down(int64_t count, int64_t step) { return count / step * step; }
template <class Number>
KERNELCG_INLINE Number smaller(Number a, Number b) {
    return a < b ? a : b;
}
template <class Number>
KERNELCG_INLINE Number larger(Number a, Number b) {
    return a > b ? a : b;
}
KERNELCG_INLINE int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return larger(low, smaller(value, high));
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
