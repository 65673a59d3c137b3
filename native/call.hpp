// A call from outside that can be ended early, as by Ctrl-C.
//
// While a Call exists, Shares and OrderedBlocks that its thread makes belong to it: once it is over they give out no
// more work, so that the call returns soon, with a result that nobody may use. Shares and blocks that have been begun are
// finished, and nobody waits for one that has not.
//
// Nothing here is inline: the header serves every instruction-set variant (see simd.hpp).
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace kernelcg {

class Call {
public:
    // Says whether the call shall end. Only the thread of the call asks, some times a second; it must not throw.
    using Question = bool (*)();

    explicit Call(Question shall_end);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // The innermost call of this thread, or null.
    static Call* current();

    // Whether no more work is to be begun. Any worker asks before it takes some.
    bool is_over();

private:
    const Question shall_end_;
    const std::thread::id thread_;
    Call* const outer_;
    std::chrono::steady_clock::time_point asked_;
    std::atomic<bool> over_{false};
};

}  // namespace kernelcg
