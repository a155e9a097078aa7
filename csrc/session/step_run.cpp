#include "session/step_run.h"

#include <algorithm>

namespace spac {

bool StepTimer::goes_on() {
    const int64_t now = since(start_);
    longest_          = std::max(longest_, now - before_);
    before_           = now;
    return ++n_steps_ < run_.n_most && static_cast<double>(now + longest_) <= run_.seconds * 1e9;
}

void add(Step & sum, const Step & next) {
    sum.tokens.insert(sum.tokens.end(), next.tokens.begin(), next.tokens.end());
    sum.n_drafted += next.n_drafted;
    sum.n_accepted += next.n_accepted;
    sum.n_verified += next.n_verified;
    sum.n_steps += next.n_steps;
    sum.draft_ns += next.draft_ns;
    sum.verify_ns += next.verify_ns;
    sum.sample_ns += next.sample_ns;
    sum.reason      = next.reason;
    sum.demand      = next.demand;
    sum.n_layer     = next.n_layer;
    sum.n_expert    = next.n_expert;
    sum.layer_costs = next.layer_costs;
    sum.n_uploads += next.n_uploads;
    sum.upload_bytes += next.upload_bytes;
    sum.upload_ns += next.upload_ns;
}

} // namespace spac
