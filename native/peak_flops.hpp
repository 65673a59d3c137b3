// Measured peak of the arithmetic units, against which the efficiency of the products is judged.
#pragma once

#include <chrono>

#include "simd.hpp"
#include "workers.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

// Independent chains of multiply-adds in registers: enough to hide their latency on every known core (two units of
// latency 4 or 5), few enough for the 16 registers of AVX2 and SSE.
constexpr int kChains = 12;

// Runs `steps` rounds of kChains vector multiply-adds and returns a value that depends on all of them. The compiler
// may not reassociate floating-point chains, so the work cannot be shortened.
template <class T>
__attribute__((noinline)) double run_chains(int64_t steps, T start) {
    Vec<T> chain[kChains];
    KERNELCG_UNROLL for (int c = 0; c < kChains; ++c) chain[c] = broadcast<T>(start + T(c));
    const Vec<T> factor = broadcast<T>(start * T(0.999));
    const Vec<T> summand = broadcast<T>(start * T(1e-3));
    for (int64_t step = 0; step < steps; ++step)
        KERNELCG_UNROLL for (int c = 0; c < kChains; ++c) chain[c] = chain[c] * factor + summand;
    double sum = 0;
    KERNELCG_UNROLL for (int c = 0; c < kChains; ++c) sum += double(chain[c][0]);
    return sum;
}

// Multiply-adds per second of `threads` threads together: the best of many short measurements in about 0.2 s, since
// other load on the machine can only slow one down.
template <class T>
double fma_rate(int threads) {
    using Clock = std::chrono::steady_clock;
    constexpr int64_t steps = 400000;
    constexpr double measuring_time = 0.2;
    const double work = double(steps) * kChains * kLanes<T> * threads;
    volatile T start = T(1);
    double best = 0, elapsed = 0;
    while (elapsed < measuring_time) {
        const auto begin = Clock::now();
        Shares chains(threads, 1);
        run_workers(threads, [&](int) {
            chains.for_each_item([&](int64_t) {
                volatile double sink = run_chains<T>(steps, start);
                (void)sink;
            });
        });
        const double seconds = double((Clock::now() - begin).count()) * Clock::period::num / Clock::period::den;
        best = larger(best, work / seconds);
        elapsed += seconds;
    }
    return best;
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
