// The divider of prompts: in each block of a batch that is divided (Experts::set_stream_divides), some missing experts
// come over the link to the weight stream's regions, and the CPU computes the rows of the others meanwhile.
//
// The ids are on the host then. The device's part runs in turns, as that of a streamed block (prefill_runner.h), but
// with the experts that the rows use: residents from their slots, others over the link. It reads -1 for the CPU's
// experts. Slots are not touched. The sides are balanced by measured times (core/miss_balance.h).
#pragma once

#include "backend/experts/model_experts.h"
#include "backend/graph/split_graph.h"
#include "backend/prefill/prefill_runner.h"
#include "core/miss_balance.h"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace spac {

class PromptDivider {
  public:
    explicit PromptDivider(PrefillRunner & turns) : turns_(turns) {}

    // A block's division. Experts that the device computes have their own number as slot in `ids`.
    struct Division {
        std::shared_ptr<const Mask> ids; // null: nothing comes over the link
        std::vector<int32_t>        from;
        ModelExperts::Snapshot      now;
    };
    // Divides a block whose ids are in staging.
    Division divide(const SplitBlock & b, const Staging & s);
    // Queues the device's part.
    ggml_status launch(const SplitBlock & b, const Staging & s, const Division & division, const ggml_cgraph * graph);
    // Notes the time that the CPU took for its part.
    void note_cpu(int64_t ns);
    // Waits for the end of the last block's part, if there was one, and notes its time. Call it before the next one.
    void await();
    // Forgets the last block's part, because its graph has ended.
    void forget() { last_ = nullptr; }

  private:
    PrefillRunner &             turns_;
    std::array<MissBalance, 16> balances_;                   // by the power of two of the tokens
    MissBalance *               balance_ = nullptr;          // of the last division
    double                      cpu_ns_ = 0, device_ns_ = 0; // expected times of the last division
    const SplitBlock *          last_     = nullptr;         // the block under way
    int64_t                     start_ns_ = 0;
};

} // namespace spac
