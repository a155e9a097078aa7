#include "backend/experts/lookahead.h"

#include <algorithm>

namespace spac {
namespace {

// The weight of one comparison in the running mean. Some hundred comparisons (a few tokens' layers) change a place's
// trust for good.
constexpr float pace = 1.0f / 256;

} // namespace

void Lookahead::note_layer(int il, int64_t now_ns) {
    const std::lock_guard lock(mutex_); // several contexts may run
    if (il == last_layer_ + 1) {
        const int64_t took = now_ns - last_layer_at_, before = layer_ns_;
        layer_ns_ = before == 0 ? took : before + (took - before) / 16;
    }
    last_layer_    = il;
    last_layer_at_ = now_ns;
}

int Lookahead::n_trusted(int n_used) const {
    const std::lock_guard lock(mutex_);
    int                   n = std::min(n_used, most_places);
    while (n > 0 && trust_[n - 1] < least_trust) {
        --n;
    }
    return n;
}

void Lookahead::compare(const int32_t * predicted, const int32_t * chosen, int n_used) {
    const int n       = std::min(n_used, most_places);
    int       n_right = 0;
    {
        const std::lock_guard lock(mutex_);
        for (int i = 0; i < n; ++i) {
            const bool right = std::find(chosen, chosen + n_used, predicted[i]) != chosen + n_used;
            trust_[i] += ((right ? 1.0f : 0.0f) - trust_[i]) * pace;
            n_right += right;
        }
    }
    n_foreseen_ += n;
    n_right_ += n_right;
}

} // namespace spac
