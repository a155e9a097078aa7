#include "backend/experts/model_experts.h"

#include "backend/experts/expert_store.h"
#include "backend/experts/reconciler.h"
#include "core/error.h"

#include <algorithm>
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
    {
        const std::lock_guard lock(mutex_);
        gone_ = true; // from here on, no thread attaches slots
    }
    detach();
    const std::lock_guard lock(mutex_);
    copies_.reset();
    layers_.freeze();
}

bool ModelExperts::is_gone() const {
    const std::lock_guard lock(mutex_);
    return gone_;
}

// ---- layers

int ModelExperts::find_or_add_layer(const std::vector<const ggml_tensor *> & weights, int n_used) {
    const std::lock_guard lock(mutex_);
    const bool            stored = in_store(weights.front());
    const int il = layers_.find_or_add(weights, n_used, stored ? device_of_store(weights.front()) : device_);
    while (parts_.size() < layers_.devices().size()) {
        parts_.push_back(std::make_unique<ExpertsPart>(layers_.devices()[parts_.size()]));
    }
    return il;
}

ExpertsPart & ModelExperts::part_of(int il) const {
    const std::lock_guard lock(mutex_);
    return part_of_locked(il);
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
    check_one_device_locked();
    layers_.freeze();
    return found;
}

// A draft of the model by itself reads its experts on one device.
void ModelExperts::check_one_device_locked() const {
    if (parts_.size() > 1) {
        throw InputError("a model whose layers are on several devices cannot draft for itself: choose one device");
    }
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

void ModelExperts::set_draft_pass(bool on) {
    const std::lock_guard lock(mutex_);
    if (on && !copies_) {
        throw InputError("a draft pass needs low-bit copies of the experts: attach them first");
    }
    draft_pass_ = on;
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
    for (const auto & part : parts_) {
        if (part->reconciler && n_layers == 0) {
            part->reconciler->forget();
        }
    }
}

void ModelExperts::foresee(int il, std::vector<int32_t> experts) {
    const std::lock_guard lock(mutex_);
    const ExpertsPart &   part = part_of_locked(il);
    if (part.reconciler) {
        const auto mask    = part.residency->mask(il);
        const bool missing = std::any_of(experts.begin(), experts.end(), [&](int e) { return mask->slot_of[e] < 0; });
        part.reconciler->foresee(il, std::move(experts), missing);
    }
}

void ModelExperts::note_used(int il, std::vector<int32_t> experts) {
    const std::lock_guard lock(mutex_);
    if (const ExpertsPart & part = part_of_locked(il); part.reconciler) {
        part.reconciler->note_used(il, std::move(experts));
    }
}

// ---- demand

int ModelExperts::take_demand(int32_t * counts) {
    const int n = n_expert();
    return counter().take(counts, n_layer(), n);
}

std::shared_ptr<void> ModelExperts::shared_among_streams(const std::function<std::shared_ptr<void>()> & make) {
    const std::lock_guard lock(mutex_);
    if (parts_.size() < 2) {
        return make();
    }
    std::shared_ptr<void> known = shared_.lock();
    if (known == nullptr) {
        known   = make();
        shared_ = known;
    }
    return known;
}

// A graph that begins behind the last layer of the last one is of the same step if it is on another device, or on the
// same stream. The same device's stream of another context may have layers that draft, which follow the target's.
void ModelExperts::end_step(const void * stream, int first, int last) {
    const std::lock_guard lock(mutex_);
    const bool            follows = last_counted_ >= 0 && first == last_counted_ + 1;
    const bool            same_step =
        follows && (stream == last_stream_ || layers_[first].info.device != layers_[last_counted_].info.device);
    last_counted_ = last;
    last_stream_  = stream;
    if (!same_step) {
        demand.end_step();
    }
}

ExpertStats ModelExperts::stats() const {
    ExpertStats s = {};
    demand.add_to(s);
    counters.add_to(s);
    s.foreseen       = lookahead.n_foreseen();
    s.foreseen_right = lookahead.n_right();
    s.disk_bytes     = paged_ ? bytes_from_disk() : 0;
    return s;
}

void Counters::add_to(ExpertStats & stats) const {
    stats.blocks            = blocks;
    stats.blocks_device     = blocks_device;
    stats.blocks_host       = blocks_host;
    stats.uploads           = uploads;
    stats.upload_bytes      = upload_bytes;
    stats.upload_failures   = upload_failures;
    stats.upload_ns         = upload_ns;
    stats.evictions         = evictions;
    stats.host_waits        = host_waits;
    stats.host_wait_ns      = host_wait_ns;
    stats.host_compute_ns   = host_compute_ns;
    stats.download_bytes    = download_bytes;
    stats.join_bytes        = join_bytes;
    stats.blocks_streamed   = blocks_streamed;
    stats.stream_bytes      = stream_bytes;
    stats.stream_slot_bytes = stream_slot_bytes;
    stats.stream_ring_bytes = stream_ring_bytes;
    stats.graphs_prepared   = graphs_prepared;
    stats.queue_ns          = queue_ns;
    stats.ahead_ns          = ahead_ns;
    stats.early_bytes       = early_bytes;
    stats.early             = early;
    stats.early_right       = early_right;
    stats.load_bytes        = load_bytes;
}

} // namespace spac
