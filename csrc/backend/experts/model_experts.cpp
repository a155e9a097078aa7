#include "backend/experts/model_experts.h"

#include "backend/device/device_memory.h"
#include "backend/experts/reconciler.h"
#include "backend/experts/weight_turns.h"
#include "core/error.h"

#include <algorithm>
#include <chrono>
#include <fstream>

namespace spac {
namespace {

// Returns the bytes that this process has read from storage so far, or 0 if the system does not tell.
uint64_t bytes_from_disk() {
    std::ifstream file("/proc/self/io");
    std::string   name;
    uint64_t      value = 0;
    while (file >> name >> value) {
        if (name == "read_bytes:") {
            return value;
        }
    }
    return 0;
}

} // namespace

ModelExperts::ModelExperts() { draft_demand.set_counting(false); }

ModelExperts::~ModelExperts() { detach(); }

void ModelExperts::set_device(ggml_backend_dev_t inner, HostMemory memory) {
    const std::lock_guard lock(mutex_);
    device_ = inner;
    memory_ = std::max(memory_, memory);
}

std::string ModelExperts::host_memory() const {
    if (paged_) {
        return "paged";
    }
    const std::lock_guard lock(mutex_);
    switch (memory_) {
    case HostMemory::pinned:
        return "pinned";
    case HostMemory::pinned_mapping:
        return "pinned mapping";
    default:
        break;
    }
    if (host_bytes_locked().pinned > 0) {
        return "partly pinned";
    }
    return device_ != nullptr && ggml_backend_dev_host_buffer_type(device_) != nullptr ? "staged" : "pageable";
}

HostBytes ModelExperts::host_bytes() const {
    const std::lock_guard lock(mutex_);
    return host_bytes_locked();
}

HostBytes ModelExperts::host_bytes_locked() const {
    HostBytes found = {0, 0, unpinned_};
    if (gone_) { // the tensors are freed too
        return found;
    }
    for (const auto & layer : layers_) {
        for (const ExpertWeight & weight : layer.weights) {
            const size_t bytes  = ggml_nbytes(weight.tensor);
            const size_t direct = pinned.pinned_bytes(weight.tensor->data, bytes);
            found.pinned += direct;
            found.pageable += bytes - direct;
        }
    }
    return found;
}

void ModelExperts::note_unpinned(Unpinned why) {
    const std::lock_guard lock(mutex_);
    unpinned_ = std::max(unpinned_.load(), why);
}

void ModelExperts::store_gone() {
    detach();
    const std::lock_guard lock(mutex_);
    gone_ = true;
    unpin_.clear();
    copies_.reset();
    layers_.freeze();
}

// Ends the reconciler and drops all masks. Slots live on until the last launch that reads them has ended.
void ModelExperts::detach() {
    std::unique_ptr<Reconciler> reconciler;
    std::unique_ptr<Residency>  residency;
    {
        const std::lock_guard lock(mutex_);
        reconciler.swap(reconciler_);
    }
    reconciler.reset(); // joins its thread, which needs the mutex
    {
        const std::lock_guard lock(mutex_);
        residency.swap(residency_);
        storage_.reset();
        ++storage_generation_;
    }
}

// ---- layers

int ModelExperts::find_or_add_layer(const std::vector<const ggml_tensor *> & weights, int n_used) {
    const std::lock_guard lock(mutex_);
    return layers_.find_or_add(weights, n_used, device_);
}

void ModelExperts::set_router(int il, std::shared_ptr<const Router> router) {
    const std::lock_guard lock(mutex_);
    const auto            place = static_cast<size_t>(il);
    routers_.resize(std::max(routers_.size(), place + 1));
    routers_[place] = std::move(router);
}

std::shared_ptr<const Router> ModelExperts::router(int il) const {
    const std::lock_guard lock(mutex_);
    const auto            place = static_cast<size_t>(il);
    return !gone_ && place < routers_.size() ? routers_[place] : nullptr;
}

void ModelExperts::note_unsplit(const char * weight, Unsplit why) {
    static constexpr const char * reasons[] = {
        "an adapter, an op that spac does not know, or tokens that name an expert twice",
        "the device has no kernel for it", "it was met after the layers were counted"};
    const auto i = static_cast<size_t>(why);
    if (!unsplit_noted_[i].exchange(true)) {
        GGML_LOG_WARN("spac: the block around %s cannot be split (%s): such blocks run on the CPU\n", weight,
                      reasons[i]);
    }
}

int ModelExperts::n_layer() const {
    const std::lock_guard lock(mutex_);
    if (!layers_.empty()) {
        layers_.freeze();
    }
    return layers_.size();
}

int ModelExperts::n_expert() const {
    const std::lock_guard lock(mutex_);
    return layers_.n_expert();
}

LayerInfo ModelExperts::layer(int il) const {
    const std::lock_guard lock(mutex_);
    if (il < 0 || il >= layers_.size()) {
        throw InputError("layer " + std::to_string(il) + " is out of range: the model has " +
                         std::to_string(layers_.size()) + " MoE layers");
    }
    return layers_[il].info;
}

int ModelExperts::pool_of(int il) const {
    const std::lock_guard lock(mutex_);
    return layers_[il].info.pool;
}

// ---- slots

void ModelExperts::attach_slots(int n_slots) {
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
    const auto pools      = share_out(n_slots, layers, layers_.n_pool());
    const auto prototypes = layers_.prototypes();
    const auto limits     = layers_.pool_limits(device_);
    lock.unlock();
    for (int p = 0; p < static_cast<int>(pools.size()); ++p) {
        if (pools[p] > limits[p]) {
            throw InputError(std::to_string(n_slots) + " slots would stack " + std::to_string(pools[p]) +
                             " experts in one tensor, and devices' kernels can address " + std::to_string(limits[p]) +
                             " of this size: give " + std::to_string(most_slots(limits, layers)) + " slots at most");
        }
    }
    std::shared_ptr<const SlotStorage> storage;
    try {
        storage = std::make_shared<SlotStorage>(device_, prototypes, pools);
    } catch (const MemoryError & error) {
        throw MemoryError(std::string(error.what()) + ": " + std::to_string(n_slots) + " were asked for, about " +
                          std::to_string(slots_that_fit(0)) + " would fit");
    }
    lock.lock();
    storage_   = storage;
    residency_ = std::make_unique<Residency>(layers, pools, std::move(storage));
    ++storage_generation_;
    reconciler_ = std::make_unique<Reconciler>(*this, device_);
}

size_t ModelExperts::stream_bytes() const {
    const std::lock_guard lock(mutex_);
    return stream_bytes_locked();
}

size_t ModelExperts::stream_bytes_locked() const {
    if (stream_tokens_ <= 0 || device_ == nullptr) {
        return 0;
    }
    ggml_backend_buffer_type_t type  = ggml_backend_dev_buffer_type(device_);
    size_t                     bytes = 0;
    for (const auto & layer : layers_) {
        std::vector<const ggml_tensor *> weights;
        for (const ExpertWeight & weight : layer.weights) {
            weights.push_back(weight.tensor);
        }
        bytes = std::max(bytes, turn_bytes(turns_of(weights, type), type));
    }
    return turns_affordable(device_, bytes) ? WeightTurn::n_regions * bytes : 0;
}

// Returns the bytes of the masks' device tables of two contexts: the target's, and one that drafts with the target's
// extra layers.
size_t ModelExperts::mask_bytes_locked() const {
    const size_t alignment = ggml_backend_buft_get_alignment(ggml_backend_dev_buffer_type(device_));
    const size_t row       = layers_.n_expert() * sizeof(int32_t);
    return 2 * layers_.size() * (row + alignment);
}

std::shared_ptr<void> ModelExperts::hold_stream(size_t bytes) {
    stream_held_ += bytes;
    return {nullptr, [self = shared_from_this(), bytes](void *) { self->stream_held_ -= bytes; }};
}

int ModelExperts::slots_that_fit(size_t margin) const {
    const std::lock_guard lock(mutex_);
    if (device_ == nullptr || layers_.empty()) {
        return 0;
    }
    // attached slots would be freed first
    const size_t free = memory_of(device_).free + (storage_ ? storage_->bytes() : 0);
    margin += mask_bytes_locked() + stream_bytes_locked() - std::min(stream_bytes_locked(), stream_held_.load());
    const auto layers     = layers_.table_layers();
    const auto prototypes = layers_.prototypes();
    const auto fits       = [&](int n) {
        return margin + SlotStorage::bytes_of(device_, prototypes, share_out(n, layers, layers_.n_pool())) <= free;
    };
    int low = 0, high = most_slots(layers_.pool_limits(device_), layers);
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

SlotStats ModelExperts::slots() const {
    const std::lock_guard lock(mutex_);
    SlotStats             stats = {};
    if (residency_) {
        stats.n_slots = residency_->table().n_slots();
        stats.bytes   = storage_->bytes();
        for (int il = 0; il < layers_.size(); ++il) {
            stats.n_resident += residency_->mask(il)->n_resident;
        }
    }
    return stats;
}

std::vector<int> ModelExperts::pool_slots() const {
    const std::lock_guard lock(mutex_);
    std::vector<int>      slots(layers_.n_pool(), 0);
    if (residency_) {
        slots = share_out(residency_->table().n_slots(), layers_.table_layers(), layers_.n_pool());
        for (int p = 0; p < layers_.n_pool(); ++p) {
            slots[p] -= std::min(slots[p], reserve_locked(p));
        }
    }
    return slots;
}

void ModelExperts::submit(const int32_t * priority, const int32_t * threshold) {
    std::shared_ptr<SlotReturns> returns;
    {
        const std::lock_guard lock(mutex_);
        if (!residency_) {
            return;
        }
        Plan plan;
        plan.n_layer  = layers_.size();
        plan.n_expert = layers_.n_expert();
        plan.priority.assign(priority, priority + static_cast<size_t>(plan.n_layer) * plan.n_expert);
        plan.threshold.assign(threshold, threshold + plan.n_layer);
        residency_->submit(std::move(plan));
        returns = residency_->returns();
    }
    returns->wake();
}

bool ModelExperts::settle(double timeout_s) {
    std::unique_lock lock(mutex_);
    return settled_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                             [&] { return !residency_ || residency_->settled(); });
}

void ModelExperts::residency(int32_t * slot_of) const {
    const int             n = n_expert();
    const std::lock_guard lock(mutex_);
    std::fill(slot_of, slot_of + static_cast<size_t>(n) * layers_.size(), -1);
    for (int il = 0; residency_ && il < layers_.size(); ++il) {
        const auto mask = residency_->mask(il);
        std::copy(mask->slot_of.begin(), mask->slot_of.end(), slot_of + static_cast<size_t>(il) * n);
    }
}

ModelExperts::Snapshot ModelExperts::snapshot(int il) const {
    const std::lock_guard lock(mutex_);
    if (!residency_ || il < 0) {
        return {};
    }
    return {residency_->mask(il), storage_, storage_generation_};
}

// ---- drafts of the model by itself

std::vector<const ggml_tensor *> ModelExperts::weights() const {
    const std::lock_guard            lock(mutex_);
    std::vector<const ggml_tensor *> found;
    for (const auto & layer : layers_) {
        for (const ExpertWeight & weight : layer.weights) {
            found.push_back(weight.tensor);
        }
    }
    if (gone_ || device_ == nullptr || found.empty()) {
        throw InputError("no experts to copy: create a context of a model with experts first");
    }
    layers_.freeze();
    return found;
}

void ModelExperts::attach_draft_copies(const std::string & type, int n_threads) {
    auto copies = std::make_shared<const DraftCopies>(device_, weights(), DraftCopies::type_of(type), n_threads);
    const std::lock_guard lock(mutex_);
    copies_ = std::move(copies);
}

size_t ModelExperts::draft_copy_bytes(const std::string & type) const {
    return DraftCopies::bytes_of(device_, weights(), DraftCopies::type_of(type));
}

size_t ModelExperts::draft_bytes() const {
    const std::lock_guard lock(mutex_);
    return copies_ ? copies_->bytes() : 0;
}

void ModelExperts::set_draft_pass(DraftPass pass) {
    const std::lock_guard lock(mutex_);
    if (pass == DraftPass::copies && !copies_) {
        throw InputError("a draft pass needs low-bit copies of the experts: attach them first");
    }
    draft_pass_ = pass;
}

std::shared_ptr<const DraftCopies> ModelExperts::draft_copies() const {
    const std::lock_guard lock(mutex_);
    return copies_;
}

// ---- looking ahead

void ModelExperts::set_lookahead(int n_layers) {
    if (n_layers < 0) {
        throw InputError("the layers to look ahead must not be negative, not " + std::to_string(n_layers));
    }
    lookahead.set_distance(n_layers);
    const std::lock_guard lock(mutex_);
    if (reconciler_ && n_layers == 0) {
        reconciler_->forget();
    }
}

void ModelExperts::foresee(int il, std::vector<int32_t> experts) {
    const std::lock_guard lock(mutex_);
    if (reconciler_) {
        const auto mask    = residency_->mask(il);
        const bool missing = std::any_of(experts.begin(), experts.end(), [&](int e) { return mask->slot_of[e] < 0; });
        reconciler_->foresee(il, std::move(experts), missing);
    }
}

void ModelExperts::note_used(int il, std::vector<int32_t> experts) {
    const std::lock_guard lock(mutex_);
    if (reconciler_) {
        reconciler_->note_used(il, std::move(experts));
    }
}

// ---- demand

int ModelExperts::take_demand(int32_t * counts) {
    const int n = n_expert();
    return counter().take(counts, n_layer(), n);
}

std::pair<int, int> ModelExperts::routes(std::vector<int32_t> & ids) const { return counter().routes(ids, n_layer()); }

void ModelExperts::keep_shares(bool keeps) {
    demand.keep_shares(keeps);
    draft_demand.keep_shares(keeps);
}

void ModelExperts::take_layer_costs(LayerCost * costs) { demand.take_layer_costs(costs, n_layer()); }

void ModelExperts::set_layer_listener(LayerListener listener) { demand.set_listener(std::move(listener)); }

ExpertStats ModelExperts::stats() const {
    ExpertStats s = {};
    demand.add_to(s);
    counters.add_to(s);
    s.foreseen       = lookahead.n_foreseen();
    s.foreseen_right = lookahead.n_right();
    s.disk_bytes     = paged_ ? bytes_from_disk() : 0;
    return s;
}

} // namespace spac
