#include "backend/experts/weight_turns.h"

#include "backend/device/device_memory.h"

#include <algorithm>
#include <unordered_set>

namespace spac {
namespace {

size_t padded(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

} // namespace

std::vector<WeightTurn> turns_of(const std::vector<const ggml_tensor *> & weights, ggml_backend_buffer_type_t type) {
    const size_t                            alignment = ggml_backend_buft_get_alignment(type);
    std::unordered_set<const ggml_tensor *> known;
    std::vector<WeightTurn>                 turns;
    size_t                                  end = 0;
    for (const ggml_tensor * weight : weights) {
        const bool is_matrix = weight->ne[2] > 1;
        if (!known.insert(weight).second || (turns.empty() && !is_matrix)) {
            return {};
        }
        if (is_matrix) {
            turns.emplace_back();
            turns.back().first = static_cast<int>(known.size()) - 1;
            end                = 0;
        }
        turns.back().weights.push_back(weight);
        turns.back().offsets.push_back(end);
        end += padded(ggml_backend_buft_get_alloc_size(type, weight), alignment);
    }
    return turns;
}

size_t turn_bytes(const std::vector<WeightTurn> & turns, ggml_backend_buffer_type_t type) {
    size_t bytes = 0;
    for (const WeightTurn & turn : turns) {
        bytes = std::max(bytes, turn.offsets.back() + ggml_backend_buft_get_alloc_size(type, turn.weights.back()));
    }
    return padded(bytes, ggml_backend_buft_get_alignment(type));
}

bool turns_affordable(ggml_backend_dev_t device, size_t region_bytes) {
    // Regions up to this size are always affordable. A matrix of all experts has some hundred MiB in most models.
    constexpr size_t always = size_t{1} << 30;
    const size_t     size   = memory_of(device).size();
    return WeightTurn::n_regions * region_bytes <= std::max(std::min(always, size / 3), size / 6);
}

} // namespace spac
