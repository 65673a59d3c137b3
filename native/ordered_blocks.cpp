#include "ordered_blocks.hpp"

#include <algorithm>
#include <numeric>

namespace kernelcg {

OrderedBlocks::OrderedBlocks(const OrderedSize& size, const OrderedMemory& memory)
    : size_(size), memory_(memory), call_(Call::current()), free_slots_(size.slots) {
    std::fill_n(memory_.turns, size_.parts, int64_t(0));
    std::fill_n(memory_.slots, size_.blocks, int64_t(-1));
    std::fill_n(memory_.left, size_.slots * size_.parts, char(0));
    std::iota(memory_.free, memory_.free + size_.slots, int64_t(0));
}

OrderedBlocks::~OrderedBlocks() = default;

// Blocks are taken in their order and only with a free slot: the first block that has not been added entirely always
// has a slot, somebody works on it, and whoever waits here is woken in the end. The slot that became free last is taken
// first, so that no more memory is touched than is needed at once.
int64_t OrderedBlocks::take() {
    if (call_ && call_->is_over()) return -1;
    std::unique_lock<std::mutex> lock(mutex_);
    slot_became_free_.wait(lock, [&] { return next_block_ >= size_.blocks || free_slots_ > 0; });
    if (next_block_ >= size_.blocks) return -1;
    const int64_t block = next_block_++;
    if (size_.parts > 0) {
        const int64_t slot = memory_.free[--free_slots_];
        memory_.slots[block] = slot;
        memory_.missing[slot] = size_.parts - block * size_.rows_per_block / size_.entries_per_part;
    }
    if (next_block_ == size_.blocks) slot_became_free_.notify_all();  // nothing is left to wait for
    return block;
}

int64_t OrderedBlocks::slot_of(int64_t block) const { return memory_.slots[block]; }

bool OrderedBlocks::is_due(int64_t block, int64_t part) const {
    return __atomic_load_n(memory_.turns + part, __ATOMIC_ACQUIRE) == block;
}

bool OrderedBlocks::leave(int64_t block, int64_t part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (memory_.turns[part] == block) return false;
    left_flag(block, part) = 1;
    return true;
}

bool OrderedBlocks::advance(int64_t block, int64_t part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    __atomic_store_n(memory_.turns + part, block + 1, __ATOMIC_RELEASE);
    if (--memory_.missing[slot_of(block)] == 0) {
        memory_.free[free_slots_++] = slot_of(block);
        slot_became_free_.notify_all();
    }
    return block + 1 < next_block_ && take_left(block + 1, part);
}

// Whether the block has left a contribution to the part; from now on it has none.
bool OrderedBlocks::take_left(int64_t block, int64_t part) {
    char& flag = left_flag(block, part);
    const bool left = flag != 0;
    flag = 0;
    return left;
}

char& OrderedBlocks::left_flag(int64_t block, int64_t part) {
    return memory_.left[slot_of(block) * size_.parts + part];
}

}  // namespace kernelcg
