#include "call.hpp"

namespace kernelcg {
namespace {

using Clock = std::chrono::steady_clock;

// Time between two questions. Asking takes the interpreter's lock, for which a call may have to wait some milliseconds
// where other threads of Python are busy.
constexpr Clock::duration kPause = std::chrono::milliseconds(200);

thread_local Call* innermost = nullptr;

}  // namespace

Call::Call(Question shall_end)
    : shall_end_(shall_end), thread_(std::this_thread::get_id()), outer_(innermost), asked_(Clock::now()) {
    innermost = this;
}

Call::~Call() { innermost = outer_; }

Call* Call::current() { return innermost; }

bool Call::is_over() {
    if (over_.load(std::memory_order_relaxed)) return true;
    if (std::this_thread::get_id() != thread_) return false;
    const Clock::time_point now = Clock::now();
    if (now - asked_ < kPause) return false;
    const bool over = shall_end_();
    asked_ = Clock::now();
    over_.store(over, std::memory_order_relaxed);
    return over;
}

}  // namespace kernelcg
