// Host memory of weights that the device holds, which goes back to the system.
#include "backend/experts/model_experts.h"
#include "backend/experts/page_advice.h"
#include "core/error.h"

#include <algorithm>
#include <utility>

namespace spac {

void ModelExperts::on_return(std::function<void(const std::vector<Extent> &)> unpin) {
    const std::lock_guard lock(mutex_);
    unpin_.push_back(std::move(unpin));
}

size_t ModelExperts::return_to_file(const std::vector<int> & layers, bool dense) {
    std::vector<std::unique_lock<std::mutex>> driving; // no copy begins meanwhile
    for (const auto & part : parts_) {
        driving.emplace_back(part->driving);
    }
    const std::lock_guard lock(mutex_);
    const bool            is_pinned  = host_bytes_locked().pinned > 0;
    const bool            is_loading = std::any_of(parts_.begin(), parts_.end(), [](const auto & part) {
        return part->residency && part->residency->is_loading();
    });
    if (gone_ || (is_pinned && (unpin_.empty() || is_loading))) {
        return 0;
    }
    std::vector<Extent> all, given;
    for (const auto & layer : layers_) {
        for (const ExpertWeight & weight : layer.weights) {
            const auto begin = reinterpret_cast<uintptr_t>(weight.tensor->data);
            all.push_back({begin, begin + ggml_nbytes(weight.tensor)});
        }
    }
    for (const int il : layers) {
        if (il < 0 || il >= layers_.size()) {
            throw InputError("layer " + std::to_string(il) + " does not exist: there are " +
                             std::to_string(layers_.size()));
        }
        for (const ExpertWeight & weight : layers_[il].weights) {
            const auto begin = reinterpret_cast<uintptr_t>(weight.tensor->data);
            given.push_back({begin, begin + ggml_nbytes(weight.tensor)});
        }
    }
    std::sort(given.begin(), given.end(), [](const Extent & a, const Extent & b) { return a.begin < b.begin; });
    size_t bytes = 0;
    if (is_pinned) {
        for (const Extent & range : given) {
            bytes += pinned.pinned_bytes(reinterpret_cast<const void *>(range.begin), range.end - range.begin);
        }
        for (const auto & unpin : unpin_) {
            unpin(given);
        }
        for (const Extent & range : given) {
            bytes -= pinned.pinned_bytes(reinterpret_cast<const void *>(range.begin), range.end - range.begin);
        }
    } else if (dense && !file_copies.empty()) {
        // Pinned dense weights stay: ggml may copy them in one piece, which must not cross a registration's border.
        const auto gaps = file_copies.gaps(std::move(all));
        given.insert(given.end(), gaps.begin(), gaps.end());
    }
    size_t mapped = 0;
    for (const Extent & range : given) {
        if (file_copies.empty()) {
            advise(range, MADV_PAGEOUT);
        } else {
            mapped += file_copies.map_again(range);
        }
    }
    return std::max(bytes, mapped);
}

} // namespace spac
