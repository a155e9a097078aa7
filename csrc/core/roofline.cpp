#include "core/roofline.h"

#include <algorithm>

namespace spac {

void roofline_curve(int n, const double * accept, const double * go_on, const RooflineCosts & costs,
                    const RooflineCurve & curve) {
    const bool all_go_on = std::all_of(go_on, go_on + n, [](double p) { return p == 1; });
    double     chance = 1, tokens = 0;           // that a draft is accepted so far; of it
    double     reach = 1, drafted = 0;           // that a draft comes so far; of it
    double     more_missed = 0, more_verify = 0; // than without a draft, in the mean
    double     longest = 0;
    for (int k = 0; k <= n; ++k) {
        const double missed_s = costs.price * costs.misses[k];
        const double draft    = k == 0 ? 0.0 : costs.draft_base + costs.draft_token * k;
        const double step     = draft + costs.verify[k] + missed_s;
        longest               = k == 0 ? step + costs.draft_base : std::max(longest, step); // it may stop at once
        curve.longest[k]      = k == 0 ? step : longest;
        if (k > 0) {
            chance *= accept[k - 1] * go_on[k - 1];
            tokens += chance;
            reach *= go_on[k - 1];
            drafted += reach;
            more_missed += reach * (costs.misses[k] - costs.misses[k - 1]);
            more_verify += reach * (costs.verify[k] - costs.verify[k - 1]);
        }
        curve.tokens[k] = 1 + tokens;
        if (all_go_on) {
            curve.missed[k]  = costs.misses[k];
            curve.compute[k] = draft + costs.verify[k];
            curve.cycle[k]   = curve.compute[k] + missed_s;
            continue;
        }
        const double drafting = k == 0 ? 0.0 : costs.draft_base + costs.draft_token * drafted;
        curve.missed[k]       = k == 0 ? costs.misses[0] : costs.misses[0] + more_missed;
        curve.compute[k]      = drafting + (k == 0 ? costs.verify[0] : costs.verify[0] + more_verify);
        curve.cycle[k]        = curve.compute[k] + costs.price * curve.missed[k];
    }
}

} // namespace spac
