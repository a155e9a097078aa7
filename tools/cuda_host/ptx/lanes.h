// A CUDA grid on one CPU thread: every thread of a block is a fiber, warps and blocks run one after the other.
//
// Translated kernels (translate.py) are compiled with this header, for x86-64. A fiber runs until it waits for its warp
// or its block. The last fiber to come does the common operation, so that a collective operation sees memory at one
// moment. Threads that have ended count as come. If no fiber can go on, the launch ends with a complaint.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <xmmintrin.h>

namespace ptx {

struct Index {
    uint32_t x, y, z;
};

// One launch, as the caller describes it (Python's ctypes has the same layout).
struct Launch {
    Index        grid, block;
    const char * params;
    uint64_t     shared;                    // bytes of dynamic shared memory
    uint64_t     window, window_size;       // addresses of device memory
    int64_t      window_offset;             // distance from these addresses to the bytes
    void (*complain)(const char * message); // reports a misuse: an operation without meaning on a GPU too
};

constexpr int    n_lanes = 32, n_words = 8;
constexpr size_t stack_size = size_t{256} << 10;

struct Lane;
using Words = uint32_t[n_words];

// The inputs of a collective operation's lanes, or its results.
struct Board {
    Words lane[n_lanes];
    int   n_unread = 0; // lanes that have not read the board yet
};

struct Warp {
    Lane *   lanes   = nullptr;
    int      n       = 0;
    uint32_t waiting = 0, done = 0; // lanes that wait for others of the warp; lanes that have ended
    Board    boards[n_lanes + 1];
};

enum class State : uint8_t { ready, warp, block, done };

// Collective operations. Lanes that wait for each other must be in the same one.
enum class Operation : uint8_t { sync, shuffle, vote, match, reduce, mma, load_matrix, move_matrix };

struct Kernel {
    void (*run)(Lane &, const char * params);
    uint64_t static_shared; // bytes
    bool     waits;         // true if its threads ever wait for each other
};

struct Block {
    const Launch * launch = nullptr;
    const Kernel * kernel = nullptr;
    Index          id{};
    char *         shared = nullptr;
    uint32_t       n = 0, n_done = 0, n_waiting = 0, n_voted = 0;
    uint32_t       votes     = 0;       // of the last barrier that was passed
    void *         scheduler = nullptr; // the scheduler's stack pointer
    bool           failed    = false;
};

struct Lane {
    void *    stack_pointer;
    Block *   block;
    Warp *    warp;
    Index     tid;
    int       number; // number in its warp
    State     state;
    uint32_t  mask; // mask of the operation that it waits in
    Operation operation;
    Board *   board; // the operation's board, when it is over
    Words     words;
};

// Saves the callee's registers and the stack pointer, and continues where `to` was saved.
__attribute__((naked, noinline)) inline void switch_stack(void ** /*from*/, void * /*to*/) {
    asm volatile("pushq %rbx\n pushq %rbp\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
                 "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
                 "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbp\n popq %rbx\n ret\n");
}

inline void complain(const Lane & lane, const char * what) {
    Block & block = *lane.block;
    if (!block.failed) {
        char text[400];
        std::snprintf(text, sizeof(text), "%s (block %u, %u, %u, thread %u, %u, %u)", what, block.id.x, block.id.y,
                      block.id.z, lane.tid.x, lane.tid.y, lane.tid.z);
        block.launch->complain(text);
    }
    block.failed = true;
}

inline void yield(Lane & lane) { switch_stack(&lane.stack_pointer, lane.block->scheduler); }

// Ends this thread for good.
[[noreturn]] inline void end(Lane & lane) {
    lane.state = State::done;
    lane.warp->done |= 1U << lane.number;
    ++lane.block->n_done;
    yield(lane);
    __builtin_unreachable();
}

[[noreturn]] inline void stop(Lane & lane, const char * what) {
    complain(lane, what);
    end(lane);
}

// Returns the place of the bytes of a generic or global address.
inline char * at(const Lane & lane, uint64_t address) {
    const Launch & l = *lane.block->launch;
    return reinterpret_cast<char *>(address - l.window < l.window_size ? address + l.window_offset : address);
}

template <typename T> T load(const char * p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
}
template <typename T> void               store(char * p, T value) { std::memcpy(p, &value, sizeof(T)); }
template <typename To, typename From> To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of equal number");
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

// --- Warps ------------------------------------------------------------------------------------------------------

// Returns the mask's lanes that the warp has.
inline uint32_t there(const Warp & warp, uint32_t mask) {
    return warp.n == n_lanes ? mask : mask & ((1U << warp.n) - 1);
}

// Returns true if all of the mask's lanes wait in this operation, or have ended.
inline bool all_there(const Warp & warp, uint32_t mask, Operation operation) {
    if ((there(warp, mask) & ~(warp.waiting | warp.done)) != 0) {
        return false;
    }
    for (uint32_t left = there(warp, mask) & ~warp.done; left != 0; left &= left - 1) {
        const Lane & lane = warp.lanes[__builtin_ctz(left)];
        if (lane.mask != mask || lane.operation != operation) {
            return false;
        }
    }
    return true;
}

// Waits for the mask's lanes, each of which has set its `words`. The last lane to come calls make(board, warp, lanes).
// Returns the board, which must be read at once.
template <typename Make> const Board & together(Lane & lane, uint32_t mask, Operation operation, Make make) {
    Warp & warp = *lane.warp;
    if ((mask >> lane.number & 1) == 0) {
        stop(lane, "a lane takes part in an operation whose mask it is not in");
    }
    lane.state     = State::warp;
    lane.mask      = mask;
    lane.operation = operation;
    warp.waiting |= 1U << lane.number;
    while (lane.state == State::warp) {
        if (!all_there(warp, mask, operation)) {
            yield(lane);
            continue;
        }
        const uint32_t lanes = there(warp, mask) & ~warp.done;
        Board &        board =
            *std::find_if(warp.boards, warp.boards + n_lanes, [](const Board & b) { return b.n_unread == 0; });
        for (uint32_t left = lanes; left != 0; left &= left - 1) {
            Lane & one = warp.lanes[__builtin_ctz(left)];
            std::memcpy(board.lane[one.number], one.words, sizeof(Words));
            one.state = State::ready;
            one.board = &board;
        }
        board.n_unread = __builtin_popcount(lanes);
        warp.waiting &= ~lanes;
        make(board, warp, lanes);
    }
    --lane.board->n_unread;
    return *lane.board;
}

inline void nothing(Board &, Warp &, uint32_t) {}

inline void sync_warp(Lane & lane, uint32_t mask) { together(lane, mask, Operation::sync, nothing); }

enum class Shuffle { up, down, bfly, idx };

// shfl.sync: returns the value, and sets `in_range` if its source was in range.
inline uint32_t shuffle(Lane & lane, Shuffle mode, uint32_t value, uint32_t b, uint32_t c, uint32_t mask,
                        bool * in_range) {
    lane.words[0]       = value;
    const Board & board = together(lane, mask, Operation::shuffle, nothing);
    const int     clamp = c & 31, segment = c >> 8 & 31, me = lane.number;
    const int     last = (me & segment) | (clamp & ~segment), first = me & segment, by = b & 31;
    const int     from   = mode == Shuffle::up     ? me - by
                           : mode == Shuffle::down ? me + by
                           : mode == Shuffle::bfly ? me ^ by
                                                   : first | (by & ~segment);
    const bool    inside = mode == Shuffle::up ? from >= last : from <= last;
    if (in_range != nullptr) {
        *in_range = inside;
    }
    if (!inside) {
        return value;
    }
    if ((mask >> from & 1) == 0 || from >= lane.warp->n) {
        complain(lane, "a lane asks for the value of one that is not there");
        return value;
    }
    return board.lane[from][0];
}

// vote.sync.ballot. The other votes are made of it.
inline uint32_t ballot(Lane & lane, bool vote, uint32_t mask) {
    lane.words[0]       = vote ? 1 : 0;
    const Board & board = together(lane, mask, Operation::vote, nothing);
    uint32_t      all   = 0;
    for (int i = 0; i < lane.warp->n; ++i) {
        if ((mask >> i & 1) != 0 && lane.warp->lanes[i].state != State::done && board.lane[i][0] != 0) {
            all |= 1U << i;
        }
    }
    return all;
}

inline uint32_t match_any(Lane & lane, uint64_t value, uint32_t mask) {
    std::memcpy(lane.words, &value, sizeof(value));
    const Board & board = together(lane, mask, Operation::match, nothing);
    uint32_t      same  = 0;
    for (int i = 0; i < lane.warp->n; ++i) {
        same |= (mask >> i & 1) != 0 && std::memcmp(board.lane[i], &value, sizeof(value)) == 0 ? 1U << i : 0;
    }
    return same;
}

template <typename T, typename F> T reduce(Lane & lane, T value, uint32_t mask, F combine) {
    lane.words[0]       = static_cast<uint32_t>(value);
    const Board & board = together(lane, mask, Operation::reduce, nothing);
    bool          first = true;
    T             all   = value;
    for (int i = 0; i < lane.warp->n; ++i) {
        if ((mask >> i & 1) != 0) {
            const T one = static_cast<T>(board.lane[i][0]);
            all         = first ? one : combine(all, one);
            first       = false;
        }
    }
    return all;
}

// --- Blocks -----------------------------------------------------------------------------------------------------

// bar.sync and bar.red: waits for all of the block's threads that have not ended. Returns the number of votes.
inline uint32_t sync_block(Lane & lane, bool vote = false) {
    Block & block = *lane.block;
    ++block.n_waiting;
    block.n_voted += vote ? 1 : 0;
    lane.state = State::block;
    yield(lane); // the scheduler lets all continue
    return block.votes;
}

} // namespace ptx
