// Slots: how many each device has, which experts the plan wants in them, and which are there.
#include "backend/device/device.h"
#include "backend/experts/model_experts.h"
#include "backend/experts/reconciler.h"
#include "backend/experts/slot_storage.h"
#include "core/error.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace spac {
namespace {

// Returns a device's margin of a list with one number for every device, one for all, or none.
size_t margin_of(const std::vector<size_t> & margins, int device) {
    const auto place = static_cast<size_t>(device);
    return margins.empty() ? 0 : place < margins.size() ? margins[place] : margins.back();
}

int sum(const std::vector<int> & numbers) { return std::accumulate(numbers.begin(), numbers.end(), 0); }

} // namespace

ExpertsPart::ExpertsPart(ggml_backend_dev_t on) : device(on) {}

ExpertsPart::~ExpertsPart() = default;

// Ends the reconcilers and drops all masks. Slots live on until the last launch that reads them has ended.
void ModelExperts::detach() {
    std::vector<std::unique_ptr<Reconciler>> reconcilers;
    std::vector<std::unique_ptr<Residency>>  residencies;
    {
        const std::lock_guard lock(mutex_);
        for (const auto & part : parts_) {
            reconcilers.push_back(std::move(part->reconciler));
        }
    }
    reconcilers.clear(); // joins their threads, which need the mutex
    {
        const std::lock_guard lock(mutex_);
        for (const auto & part : parts_) {
            residencies.push_back(std::move(part->residency));
            part->storage.reset();
        }
        ++storage_generation_;
    }
}

// ---- the number of slots

// Shares slots out over devices, if there are several. Margins are kept as far as that is possible.
std::vector<int> ModelExperts::share_between(int n_slots, const std::vector<size_t> & margins) const {
    const auto       n_devices = static_cast<int>(parts_.size());
    std::vector<int> experts(parts_.size(), 0);
    for (const auto & layer : layers_) {
        experts[static_cast<size_t>(layer.info.device)] += layer.info.n_expert;
    }
    if (n_devices == 1) {
        return {n_slots};
    }
    const int  wanted = std::min(n_slots, sum(experts));
    const auto share  = [&](bool with_margins) {
        std::vector<int> room;
        for (int d = 0; d < n_devices; ++d) {
            room.push_back(slots_that_fit_locked(d, with_margins ? margin_of(margins, d) : 0));
        }
        return share_by_room(n_slots, experts, room);
    };
    std::vector<int> shares = share(true);
    if (sum(shares) < wanted && !margins.empty()) {
        shares = share(false);
    }
    if (sum(shares) < wanted) {
        throw MemoryError("the devices have no room for the expert slots: " + std::to_string(n_slots) +
                          " were asked for, about " + std::to_string(sum(shares)) + " would fit");
    }
    return shares;
}

void ModelExperts::attach_slots(int n_slots, const std::vector<size_t> & margins) {
    if (n_slots < 0) {
        throw InputError("the number of slots must not be negative, not " + std::to_string(n_slots));
    }
    detach();
    std::unique_lock lock(mutex_);
    if (gone_ || layers_.empty() || device_ == nullptr) {
        throw InputError("no expert layers to give slots to: create a context of a model with experts first");
    }
    layers_.freeze();
    const auto layers     = layers_.table_layers();
    const auto prototypes = layers_.prototypes();
    const auto limits     = layers_.pool_limits();
    const auto shares     = share_between(n_slots, margins);

    std::vector<std::vector<int>> pools; // by device
    for (size_t d = 0; d < parts_.size(); ++d) {
        pools.push_back(share_out(shares[d], layers_.table_layers_on(static_cast<int>(d)), layers_.n_pool()));
    }
    lock.unlock();
    for (const auto & of_device : pools) {
        for (size_t p = 0; p < of_device.size(); ++p) {
            if (of_device[p] > limits[p]) {
                throw InputError(std::to_string(n_slots) + " slots would stack " + std::to_string(of_device[p]) +
                                 " experts in one tensor, and devices' kernels can address " +
                                 std::to_string(limits[p]) + " of this size: give " +
                                 std::to_string(most_slots(limits, layers)) + " slots at most");
            }
        }
    }
    std::vector<std::shared_ptr<const SlotStorage>> storage;
    try {
        for (size_t d = 0; d < parts_.size(); ++d) {
            storage.push_back(std::make_shared<SlotStorage>(parts_[d]->device, prototypes, pools[d]));
        }
    } catch (const MemoryError & error) {
        storage.clear();
        throw MemoryError(std::string(error.what()) + ": " + std::to_string(n_slots) + " were asked for, about " +
                          std::to_string(slots_that_fit({})) + " would fit");
    }
    lock.lock();
    if (gone_) {
        throw InputError("the model was freed while it got slots");
    }
    ++storage_generation_;
    for (size_t d = 0; d < parts_.size(); ++d) {
        parts_[d]->storage   = storage[d];
        parts_[d]->residency = std::make_unique<Residency>(layers, pools[d], std::move(storage[d]));
    }
    for (const auto & part : parts_) {
        part->reconciler = std::make_unique<Reconciler>(*this, *part);
    }
}

size_t ModelExperts::stream_bytes() const {
    const std::lock_guard lock(mutex_);
    size_t                bytes = 0;
    for (size_t d = 0; d < parts_.size(); ++d) {
        bytes += stream_bytes_locked(static_cast<int>(d));
    }
    return bytes;
}

size_t ModelExperts::stream_bytes_locked(int device) const {
    if (stream_tokens_ <= 0) {
        return 0;
    }
    ggml_backend_dev_t         on    = parts_[static_cast<size_t>(device)]->device;
    ggml_backend_buffer_type_t type  = ggml_backend_dev_buffer_type(on);
    size_t                     bytes = 0;
    for (const auto & layer : layers_) {
        if (layer.info.device != device) {
            continue;
        }
        std::vector<const ggml_tensor *> weights;
        for (const ExpertWeight & weight : layer.weights) {
            weights.push_back(weight.tensor);
        }
        bytes = std::max(bytes, stage_bytes(stages_of(weights, type), type));
    }
    return stages_affordable(on, bytes) ? WeightStage::n_regions * bytes : 0;
}

// Returns the bytes of the masks' tables on a device, for two contexts: the target's, and one that drafts with the
// target's extra layers.
size_t ModelExperts::mask_bytes_locked(int device) const {
    const auto * const part      = parts_[static_cast<size_t>(device)].get();
    const size_t       alignment = ggml_backend_buft_get_alignment(ggml_backend_dev_buffer_type(part->device));
    const size_t       row       = layers_.n_expert() * sizeof(int32_t);
    return 2 * layers_.size() * (row + alignment);
}

std::shared_ptr<void> ModelExperts::hold_stream(ggml_backend_dev_t device, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto part = std::find_if(parts_.begin(), parts_.end(), [&](const auto & p) { return p->device == device; });
    if (part == parts_.end()) { // none of its layers can have slots
        return nullptr;
    }
    ExpertsPart & of_device = **part;
    of_device.stream_held += bytes;
    return {nullptr, [self = shared_from_this(), &of_device, bytes](void *) { of_device.stream_held -= bytes; }};
}

int ModelExperts::slots_that_fit(const std::vector<size_t> & margins) const {
    const std::lock_guard lock(mutex_);
    int                   n = 0;
    for (size_t d = 0; d < parts_.size(); ++d) {
        n += slots_that_fit_locked(static_cast<int>(d), margin_of(margins, static_cast<int>(d)));
    }
    return n;
}

int ModelExperts::slots_that_fit_locked(int device, size_t margin) const {
    const ExpertsPart & part = *parts_[static_cast<size_t>(device)];
    // attached slots would be freed first
    const size_t free   = memory_of(part.device).free + (part.storage ? part.storage->bytes() : 0);
    const size_t stream = stream_bytes_locked(device);
    margin += mask_bytes_locked(device) + stream - std::min(stream, part.stream_held.load());
    const auto layers     = layers_.table_layers_on(device);
    const auto prototypes = layers_.prototypes();
    const auto fits       = [&](int n) {
        return margin + SlotStorage::bytes_of(part.device, prototypes, share_out(n, layers, layers_.n_pool())) <= free;
    };
    int low = 0, high = most_slots(layers_.pool_limits(), layers);
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (fits(middle)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    while (
        low > 0 &&
        !fits(low)) { // with one slot more, the pools' shares may hold smaller experts, so the search may end too high
        --low;
    }
    return low;
}

// ---- what is in the slots

SlotStats ModelExperts::slots() const {
    SlotStats all = {};
    for (const ExpertDevice & device : devices()) {
        all.n_slots += device.slots.n_slots;
        all.n_resident += device.slots.n_resident;
        all.bytes += device.slots.bytes;
    }
    return all;
}

std::vector<ExpertDevice> ModelExperts::devices() const {
    const std::lock_guard     lock(mutex_);
    std::vector<ExpertDevice> found;
    for (const auto & part : parts_) {
        ExpertDevice device    = {};
        device.name            = ggml_backend_dev_name(part->device);
        device.uploads         = part->uploads;
        device.upload_bytes    = part->upload_bytes;
        device.upload_failures = part->upload_failures;
        device.upload_ns       = part->upload_ns;
        device.evictions       = part->evictions;
        if (part->residency) {
            device.slots.n_slots = part->residency->table().n_slots();
            device.slots.bytes   = part->storage->bytes();
        }
        found.push_back(std::move(device));
    }
    for (int il = 0; il < layers_.size(); ++il) {
        ExpertDevice & device = found[static_cast<size_t>(layers_[il].info.device)];
        const auto [all, hit] = demand.activations_of(il);
        ++device.n_layer;
        device.n_experts += layers_[il].info.n_expert;
        device.activations += all;
        device.activations_hit += hit;
        const ExpertsPart & part = part_of_locked(il);
        device.slots.n_resident += part.residency ? part.residency->mask(il)->n_resident : 0;
    }
    return found;
}

std::vector<int> ModelExperts::pool_slots() const {
    const std::lock_guard lock(mutex_);
    std::vector<int>      slots(layers_.n_pool(), 0);
    for (size_t d = 0; d < parts_.size(); ++d) {
        if (const auto & residency = parts_[d]->residency) {
            for (int p = 0; p < layers_.n_pool(); ++p) {
                slots[p] += residency->table().n_slots(p);
            }
        }
    }
    for (int p = 0; p < layers_.n_pool(); ++p) {
        slots[p] -= std::min(slots[p], reserve_locked(p));
    }
    return slots;
}

void ModelExperts::submit(const int32_t * priority, const int32_t * threshold) {
    std::vector<std::shared_ptr<SlotReturns>> returns;
    {
        const std::lock_guard lock(mutex_);
        for (const auto & part : parts_) {
            if (!part->residency) {
                return;
            }
            Plan plan;
            plan.n_layer  = layers_.size();
            plan.n_expert = layers_.n_expert();
            plan.priority.assign(priority, priority + static_cast<size_t>(plan.n_layer) * plan.n_expert);
            plan.threshold.assign(threshold, threshold + plan.n_layer);
            part->residency->submit(std::move(plan));
            returns.push_back(part->residency->returns());
        }
    }
    for (const auto & each : returns) {
        each->wake();
    }
}

bool ModelExperts::settle(double timeout_s) {
    std::unique_lock lock(mutex_);
    return settled_.wait_for(lock, std::chrono::duration<double>(timeout_s), [&] {
        return std::all_of(parts_.begin(), parts_.end(),
                           [](const auto & part) { return !part->residency || part->residency->settled(); });
    });
}

void ModelExperts::residency(int32_t * slot_of) const {
    const int             n = n_expert();
    const std::lock_guard lock(mutex_);
    std::fill(slot_of, slot_of + static_cast<size_t>(n) * layers_.size(), -1);
    for (int il = 0; il < layers_.size(); ++il) {
        if (const ExpertsPart & part = part_of_locked(il); part.residency) {
            const auto mask = part.residency->mask(il);
            std::copy(mask->slot_of.begin(), mask->slot_of.end(), slot_of + static_cast<size_t>(il) * n);
        }
    }
}

ModelExperts::Snapshot ModelExperts::snapshot(int il) const {
    const std::lock_guard lock(mutex_);
    if (il < 0 || !part_of_locked(il).residency) {
        return {};
    }
    const ExpertsPart & part = part_of_locked(il);
    return {part.residency->mask(il), part.storage, storage_generation_};
}

} // namespace spac
