#include "backend/experts/slot_storage.h"

#include "backend/device/device.h"
#include "core/error.h"
#include "core/slot_table.h"

#include <algorithm>
#include <unordered_set>

namespace spac {
namespace {

// Returns true if the device's kernel accepts `n` experts as one tensor. Some devices limit a tensor's size, as Vulkan
// limits storage buffers.
bool multiplies(ggml_backend_dev_t device, const ggml_tensor & weight, int n) {
    const ggml_context_ptr ctx(ggml_init({4 * ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor *          slots = ggml_new_tensor_3d(ctx.get(), weight.type, weight.ne[0], weight.ne[1], n);
    ggml_tensor *          input = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, weight.ne[0], 1, 1);
    ggml_tensor *          ids   = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, 1, 1);
    return ggml_backend_dev_supports_op(device, ggml_mul_mat_id(ctx.get(), slots, input, ids));
}

size_t padded(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

} // namespace

bool ExpertWeight::same_shape(const ExpertWeight & other) const {
    return tensor->type == other.tensor->type && is_bias() == other.is_bias() && tensor->ne[0] == other.tensor->ne[0] &&
           (is_bias() || tensor->ne[1] == other.tensor->ne[1]);
}

int ExpertWeight::max_slots(ggml_backend_dev_t device) const {
    const int64_t elements = is_bias() ? tensor->ne[0] : tensor->ne[0] * tensor->ne[1];
    int           most     = slots_per_tensor(elements / ggml_blck_size(tensor->type));
    if (device == nullptr || is_bias() || most < 1 || multiplies(device, *tensor, most) ||
        !multiplies(device, *tensor, 1)) { // a type without a kernel is reported by its blocks (note_unsplit)
        return most;
    }
    int least = 1; // the kernel accepts `least`, and refuses `most`
    while (most - least > 1) {
        const int middle                                     = least + (most - least) / 2;
        (multiplies(device, *tensor, middle) ? least : most) = middle;
    }
    return least;
}

SlotStorage::SlotStorage(const std::vector<std::vector<ExpertWeight>> & prototypes, const std::vector<int> & n_slots) {
    size_t n_tensors = 0;
    for (const auto & weights : prototypes) {
        n_tensors += weights.size();
    }
    ctx_.reset(ggml_init({(n_tensors + 1) * ggml_tensor_overhead(), nullptr, true}));
    tensors_.resize(prototypes.size());
    for (size_t p = 0; p < prototypes.size(); ++p) {
        for (const ExpertWeight & weight : prototypes[p]) {
            const ggml_tensor * t = weight.tensor;
            SPAC_CHECK(n_slots[p] <= weight.max_slots(), p, n_slots[p], weight.max_slots());
            if (n_slots[p] == 0) {
                tensors_[p].push_back(nullptr);
            } else if (weight.is_bias()) {
                tensors_[p].push_back(ggml_new_tensor_2d(ctx_.get(), t->type, t->ne[0], n_slots[p]));
            } else {
                tensors_[p].push_back(ggml_new_tensor_3d(ctx_.get(), t->type, t->ne[0], t->ne[1], n_slots[p]));
            }
        }
    }
}

SlotStorage::SlotStorage(ggml_backend_dev_t device, const std::vector<std::vector<ExpertWeight>> & prototypes,
                         const std::vector<int> & n_slots)
    : SlotStorage(prototypes, n_slots) {
    if (ggml_get_first_tensor(ctx_.get()) == nullptr) {
        return;
    }
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx_.get(), ggml_backend_dev_buffer_type(device)));
    if (!buffer_) {
        throw MemoryError(std::string("device ") + ggml_backend_dev_name(device) + " has no room for the expert slots");
    }
    // some kernels read a little past a row's end, where values must be finite
    ggml_backend_buffer_clear(buffer_.get(), 0);
    ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
}

size_t SlotStorage::bytes_of(ggml_backend_dev_t device, const std::vector<std::vector<ExpertWeight>> & prototypes,
                             const std::vector<int> & n_slots) {
    const SlotStorage tensors(prototypes, n_slots);
    return ggml_backend_alloc_ctx_tensors_from_buft_size(tensors.ctx_.get(), ggml_backend_dev_buffer_type(device));
}

std::vector<WeightStage> stages_of(const std::vector<const ggml_tensor *> & weights, ggml_backend_buffer_type_t type) {
    const size_t                            alignment = ggml_backend_buft_get_alignment(type);
    std::unordered_set<const ggml_tensor *> known;
    std::vector<WeightStage>                stages;
    size_t                                  end = 0;
    for (const ggml_tensor * weight : weights) {
        const bool is_matrix = weight->ne[2] > 1;
        if (!known.insert(weight).second || (stages.empty() && !is_matrix)) {
            return {};
        }
        if (is_matrix) {
            stages.emplace_back();
            stages.back().first = static_cast<int>(known.size()) - 1;
            end                 = 0;
        }
        stages.back().weights.push_back(weight);
        stages.back().offsets.push_back(end);
        end += padded(ggml_backend_buft_get_alloc_size(type, weight), alignment);
    }
    return stages;
}

size_t stage_bytes(const std::vector<WeightStage> & stages, ggml_backend_buffer_type_t type) {
    size_t bytes = 0;
    for (const WeightStage & stage : stages) {
        bytes = std::max(bytes, stage.offsets.back() + ggml_backend_buft_get_alloc_size(type, stage.weights.back()));
    }
    return padded(bytes, ggml_backend_buft_get_alignment(type));
}

bool stages_affordable(ggml_backend_dev_t device, size_t region_bytes) {
    // Regions up to this size are always affordable. A matrix of all experts has some hundred MiB in most models.
    constexpr size_t always = size_t{1} << 30;
    const size_t     size   = memory_of(device).size();
    return WeightStage::n_regions * region_bytes <= std::max(std::min(always, size / 3), size / 6);
}

} // namespace spac
