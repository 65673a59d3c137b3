// Blocks of rows for whoever asks next, and sums over the blocks that do not depend on who asked when.
//
// Every block contributes to some parts of a common total (a part: a range of its entries), in any order of the
// blocks and at any time. The contributions enter each part strictly in the order of the blocks, so that the rounded
// total is the same for every number of threads. Whoever has a contribution that is due adds it at once; one that is
// not due is left in memory of its block, and added by whoever adds the contribution before it:
//
//     if (!order.is_due(block, part)) {
//         ...copy the contribution to the memory of slot_of(block)...
//         if (order.leave(block, part)) return;
//     }
//     ...add the contribution...
//     while (order.advance(block, part)) ...add what slot_of(++block) holds for this part...
//
// Nothing here is inline: the header serves every instruction-set variant (see simd.hpp).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "call.hpp"

namespace kernelcg {

// Block b contributes to the parts b * rows_per_block / entries_per_part ... parts - 1 of the total: a triangle.
// Without a total there are 0 parts.
struct OrderedSize {
    int64_t blocks;
    int64_t parts;
    int64_t rows_per_block;
    int64_t entries_per_part;
    int64_t slots;  // at least 1; memory for contributions of so many blocks
};

// Memory of OrderedBlocks, of the caller and of any content.
struct OrderedMemory {
    int64_t* turns;    // [part]
    int64_t* slots;    // [block]: its slot, or -1 while it has none
    int64_t* missing;  // [slot]
    int64_t* free;     // [slot]: a stack of the slots that no block has
    char* left;        // [slot][part]
};

class OrderedBlocks {
public:
    OrderedBlocks(const OrderedSize& size, const OrderedMemory& memory);
    ~OrderedBlocks();
    OrderedBlocks(const OrderedBlocks&) = delete;
    OrderedBlocks& operator=(const OrderedBlocks&) = delete;

    // The next block, or -1 after the last one, or once the call is over (see call.hpp). Waits while all slots are in use
    // by earlier blocks.
    int64_t take();

    // The slot of a block that has been taken and is not yet added entirely.
    int64_t slot_of(int64_t block) const;

    // Whether all earlier blocks have been added to the part. Then no other thread touches the part before `advance`.
    bool is_due(int64_t block, int64_t part) const;

    // Leaves a contribution that is in the memory of its slot. False when it has become due: the caller must add it.
    bool leave(int64_t block, int64_t part);

    // Says that the block's contribution has been added. True when the next block has left one: the caller must add it.
    bool advance(int64_t block, int64_t part);

private:
    bool take_left(int64_t block, int64_t part);
    char& left_flag(int64_t block, int64_t part);

    const OrderedSize size_;
    const OrderedMemory memory_;
    Call* const call_;
    std::mutex mutex_;
    std::condition_variable slot_became_free_;
    int64_t next_block_ = 0;
    int64_t free_slots_;
};

}  // namespace kernelcg
