#include "backend/split/prompt_divider.h"

#include "backend/split/missing.h"
#include "core/copy_runs.h"

#include <algorithm>
#include <numeric>

namespace spac {
namespace {

// Returns the index of the batches whose times are kept together.
size_t size_class(int n_tokens, size_t n_class) {
    size_t bits = 0;
    while (n_tokens > 1 && bits + 1 < n_class) {
        n_tokens /= 2;
        ++bits;
    }
    return bits;
}

} // namespace

PromptDivider::Division PromptDivider::divide(const SplitBlock & b, const Staging & s) {
    const auto costs = b.experts->miss_costs(b.layer);
    if (!costs) {
        return {};
    }
    Division division;
    division.now        = b.experts->snapshot(b.layer);
    const Mask *  mask  = division.now.mask.get();
    const Missing want  = missing_of(b, s, mask);
    balance_            = &balances_[size_class(b.block.n_tokens(), balances_.size())];
    const MissCosts now = balance_->corrected(*costs);
    const int n = static_cast<int>(want.experts.size()), n_link = experts_over_link(now, want.rows, want.n_resident, n);
    if (n_link == 0) {
        return {};
    }
    const auto pairs = std::accumulate(want.rows.begin() + n_link, want.rows.end(), int64_t{0});
    cpu_ns_          = divided_ns(now, n - n_link, pairs, 0, 0);
    device_ns_       = divided_ns(now, 0, 0, n_link, want.n_resident);

    auto ids = std::make_shared<Mask>();
    ids->slot_of.assign(b.n_expert, -1);
    division.from.assign(b.n_expert, not_wanted);
    for (int e = 0; e < b.n_expert; ++e) {
        if (want.used[e] != 0 && mask != nullptr && mask->slot_of[e] >= 0) {
            division.from[e] = mask->slot_of[e];
            ids->slot_of[e]  = e;
        }
    }
    for (int i = 0; i < n_link; ++i) {
        division.from[want.experts[i]] = -1;
        ids->slot_of[want.experts[i]]  = want.experts[i];
    }
    ids->n_resident = want.n_resident + n_link;
    division.ids    = std::move(ids);
    return division;
}

ggml_status PromptDivider::launch(const SplitBlock & b, const Staging & s, const Division & division,
                                  const ggml_cgraph * graph) {
    start_ns_ = Trace::now();
    last_     = &b;
    return turns_.run_part(b, s, division.now, division.from, graph);
}

void PromptDivider::note_cpu(int64_t ns) { balance_->note_cpu(cpu_ns_, ns); }

void PromptDivider::await() {
    // A wait that is shorter than this is the call alone: the device had ended before.
    constexpr int64_t call_ns = 5000;
    if (last_ == nullptr) {
        return;
    }
    const int64_t begin_ns = Trace::now();
    turns_.await(*last_);
    const int64_t end_ns = Trace::now();
    balance_->note_device(device_ns_, end_ns - start_ns_, end_ns - begin_ns > call_ns);
    last_ = nullptr;
}

} // namespace spac
