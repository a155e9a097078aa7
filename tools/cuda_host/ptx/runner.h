// Runs a kernel for all blocks of a launch, one after the other.
#pragma once

#include "lanes.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace ptx {

class Runner {
  public:
    Runner(const Kernel & kernel, const Launch & launch)
        : kernel_(kernel), launch_(launch), lanes_(size_t{launch.block.x} * launch.block.y * launch.block.z),
          warps_((lanes_.size() + n_lanes - 1) / n_lanes), shared_size_(kernel.static_shared + launch.shared + 1024),
          shared_memory_(allocate(shared_size_ + 1024)),
          stacks_(kernel.waits ? allocate(lanes_.size() * stack_size) : nullptr) {}
    Runner(const Runner &)             = delete;
    Runner & operator=(const Runner &) = delete;

    bool run() {
        const unsigned saved = _mm_getcsr();
        _mm_setcsr(saved | 0x8040); // subnormals are zero: ggml compiles with fast math
        bool fine = true;
        for (uint32_t z = 0; fine && z < launch_.grid.z; ++z) {
            for (uint32_t y = 0; fine && y < launch_.grid.y; ++y) {
                for (uint32_t x = 0; fine && x < launch_.grid.x; ++x) {
                    fine = run_block({x, y, z});
                }
            }
        }
        _mm_setcsr(saved);
        return fine;
    }

  private:
    struct Free {
        void operator()(char * p) const { std::free(p); }
    };
    using Memory = std::unique_ptr<char, Free>;

    static Memory allocate(size_t bytes) {
        constexpr size_t page = 4096;
        return Memory(static_cast<char *>(std::aligned_alloc(page, (bytes + page - 1) / page * page)));
    }

    static void begin() {
        Lane & lane = *starting_;
        lane.block->kernel->run(lane, lane.block->launch->params);
        end(lane);
    }

    void prepare(Index id) {
        block_        = {};
        block_.launch = &launch_;
        block_.kernel = &kernel_;
        block_.id     = id;
        block_.shared = shared_memory_.get();
        block_.n      = static_cast<uint32_t>(lanes_.size());
        std::memset(shared_memory_.get(), 0xFF, shared_size_); // no kernel may rely on the contents
        for (size_t i = 0; i < lanes_.size(); ++i) {
            Lane & lane = lanes_[i];
            lane.block  = &block_;
            lane.warp   = &warps_[i / n_lanes];
            lane.number = static_cast<int>(i % n_lanes);
            lane.tid    = {static_cast<uint32_t>(i) % launch_.block.x,
                           static_cast<uint32_t>(i) / launch_.block.x % launch_.block.y,
                           static_cast<uint32_t>(i) / launch_.block.x / launch_.block.y};
            lane.state  = State::ready;
            if (lane.number == 0) {
                lane.warp->lanes   = &lane;
                lane.warp->n       = static_cast<int>(std::min<size_t>(n_lanes, lanes_.size() - i));
                lane.warp->waiting = lane.warp->done = 0;
            }
            if (stacks_ != nullptr) {
                auto ** top = reinterpret_cast<void **>(stacks_.get() + (i + 1) * stack_size);
                top -= 2; // the stack is aligned to 16 bytes where a function is called
                *top = reinterpret_cast<void *>(&begin);
                top -= 6;
                lane.stack_pointer = top;
            }
        }
    }

    bool run_block(Index id) {
        prepare(id);
        if (!kernel_.waits) {
            for (Lane & lane : lanes_) {
                kernel_.run(lane, launch_.params);
            }
            return !block_.failed;
        }
        while (block_.n_done < block_.n) {
            bool moved = false;
            for (Warp & warp : warps_) {
                moved = run_warp(warp) || moved;
            }
            if (block_.n_done < block_.n && block_.n_done + block_.n_waiting == block_.n) {
                block_.votes     = block_.n_voted;
                block_.n_waiting = block_.n_voted = 0;
                for (Lane & lane : lanes_) {
                    lane.state = lane.state == State::block ? State::ready : lane.state;
                }
                moved = true;
            }
            if (!moved) {
                complain(
                    *std::find_if(lanes_.begin(), lanes_.end(), [](const Lane & l) { return l.state != State::done; }),
                    "threads wait for each other for ever");
                return false;
            }
        }
        return !block_.failed;
    }

    // Runs a warp's lanes until all wait or have ended. Returns true if any could continue.
    bool run_warp(Warp & warp) {
        bool moved = false;
        for (bool again = true; again;) {
            again = false;
            for (int i = 0; i < warp.n; ++i) {
                Lane & lane = warp.lanes[i];
                if (lane.state == State::ready ||
                    (lane.state == State::warp && all_there(warp, lane.mask, lane.operation))) {
                    starting_ = &lane;
                    switch_stack(&block_.scheduler, lane.stack_pointer);
                    again = moved = true;
                }
            }
        }
        return moved;
    }

    const Kernel &    kernel_;
    const Launch &    launch_;
    std::vector<Lane> lanes_;
    std::vector<Warp> warps_;
    Block             block_;
    size_t            shared_size_;
    Memory            shared_memory_, stacks_;

    static inline thread_local Lane * starting_ = nullptr;
};

} // namespace ptx
