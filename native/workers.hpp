// Thread-level parallelism. Work is divided into shares whose sizes depend only on the problem; workers take one share
// after the other, each in buffers of its own, and no sum depends on who took what. Results are therefore the same for
// every number of threads, and correct also when fewer threads than workers come to help.
#pragma once

#include <cstdint>

#include "call.hpp"
#include "simd.hpp"
#include "thread_pool.hpp"

namespace kernelcg {
namespace KERNELCG_VARIANT {

// Calls task(worker) for worker 0 and, at the same time, for as many of 1 ... workers - 1 as there are free threads
// for. Tasks take their work from Shares or OrderedBlocks, so that all of it is done whoever comes. They must not
// throw: memory is allocated beforehand.
template <class Task>
KERNELCG_INLINE void run_workers(int workers, const Task& task) {
    run_with_help(
        workers, [](const void* context, int worker) { (*static_cast<const Task*>(context))(worker); }, &task);
}

struct Range {
    int64_t begin;
    int64_t end;
};

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

// The items 0 ... count - 1 in shares of consecutive ones, for whoever asks next; none once the call is over (see
// call.hpp).
class Shares {
public:
    KERNELCG_INLINE Shares(int64_t count, int64_t items_per_share)
        : count_(count), items_per_share_(items_per_share), call_(Call::current()) {}

    // As many workers as can have a share, at most `threads` and at least one.
    KERNELCG_INLINE int workers(int threads) const {
        return int(clamp(divide_up(count_, items_per_share_), 1, threads));
    }

    // Calls visit(item) for the items of one share after the other, until none is left.
    template <class Visit>
    KERNELCG_INLINE void for_each_item(const Visit& visit) {
        for (Range share; (share = take()).begin < count_;)
            for (int64_t item = share.begin; item < share.end; ++item) visit(item);
    }

private:
    KERNELCG_INLINE Range take() {
        if (call_ && call_->is_over()) return {count_, count_};
        const int64_t begin = __atomic_fetch_add(&next_, items_per_share_, __ATOMIC_RELAXED);
        return {begin, smaller(begin + items_per_share_, count_)};
    }

    const int64_t count_;
    const int64_t items_per_share_;
    Call* const call_;
    int64_t next_ = 0;
};

// Items of a share so that copying one is worth waking a thread, for items of the given number of elements.
constexpr int64_t kElementsPerCopyShare = 65536;
KERNELCG_INLINE int64_t items_per_copy_share(int64_t elements_per_item) {
    return divide_up(kElementsPerCopyShare, larger<int64_t>(elements_per_item, 1));
}

}  // namespace KERNELCG_VARIANT
}  // namespace kernelcg
