#include "backend/remote/split_client.h"

#include "backend/device/ggml_internals.h"
#include "backend/experts/model_experts.h"
#include "backend/wrapper/device.h"
#include "core/error.h"

#include <algorithm>
#include <fstream>

namespace spac {

struct SplitClient::Device {
    SplitClient *      client;
    std::string        store_name;
    ggml_backend_dev_t device; // the SPAC device
    ggml_backend_t     plain;
    ggml_backend_t     stream = nullptr; // of a client that splits

    // what ggml's server sees
    ggml_backend             backend{};
    ggml_backend_device      lent_device{};
    ggml_backend_buffer_type lent_type{}; // the inner device's, with an allocation that takes memory from slots
    ggml_backend             store{};
    ggml_backend_device      store_device{};
    ggml_backend_buffer_type store_type{};
    // the wrapped device's memory and its store
    ggml_backend_buffer_type_t memory, experts;
};

namespace {

// Returns the memory that programs can still take, in bytes; 0 if the system does not tell.
size_t available_memory() {
    std::ifstream file("/proc/meminfo");
    std::string   name;
    size_t        kilobytes = 0;
    std::string   unit;
    while (file >> name >> kilobytes && std::getline(file, unit)) {
        if (name == "MemAvailable:") {
            return kilobytes * 1024;
        }
    }
    return 0;
}

// Graphs with experts after which a model's layers count as known, although some of its weights were read by none.
constexpr int most_unknown = 16;

const char * backend_name(ggml_backend_t) { return "SPAC"; }
ggml_status  compute_nothing(ggml_backend_t, ggml_cgraph *) { return GGML_STATUS_FAILED; }

// The client that splits and is served on this thread.
thread_local SplitClient * here = nullptr;

// ---- the devices that ggml's server sees. Their context is the buffer type, whose device is the real one.

ggml_backend_buffer_type_t type_of(ggml_backend_dev_t device) {
    return static_cast<ggml_backend_buffer_type_t>(device->context);
}
const char * lent_name(ggml_backend_dev_t device) { return ggml_backend_dev_name(type_of(device)->device); }
const char * lent_description(ggml_backend_dev_t device) {
    return ggml_backend_dev_description(type_of(device)->device);
}
void lent_memory(ggml_backend_dev_t device, size_t * free, size_t * total) {
    ggml_backend_dev_memory(type_of(device)->device, free, total);
}
enum ggml_backend_dev_type lent_kind(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

const char *               store_name(ggml_backend_dev_t device) { return ggml_backend_buft_name(type_of(device)); }
const char *               store_description(ggml_backend_dev_t) { return "experts in host memory"; }
enum ggml_backend_dev_type store_kind(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

// Returns the interface of a lent device or of a store.
ggml_backend_device_i iface_of(bool is_store) {
    ggml_backend_device_i iface{};
    iface.get_name        = is_store ? store_name : lent_name;
    iface.get_description = is_store ? store_description : lent_description;
    iface.get_memory      = is_store ? memory_of_host : lent_memory;
    iface.get_type        = is_store ? store_kind : lent_kind;
    iface.get_buffer_type = type_of;
    return iface;
}

} // namespace

void memory_of_host(ggml_backend_dev_t, size_t * free, size_t * total) {
    ggml_backend_dev_memory(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), free, total);
    const size_t available = available_memory();
    *free                  = available > 0 ? std::min(*free, available) : *free;
}

SplitClient::SplitClient(int n_threads) : n_threads_(n_threads) {}

SplitClient::~SplitClient() { end(); }

void SplitClient::add(const std::string & name, ggml_backend_t plain) {
    devices_.emplace_back();
    Device & each = devices_.back();
    each.client   = this;
    each.device   = static_cast<ggml_backend_dev_t>(device_handle(name));
    each.plain    = plain;
    each.memory   = ggml_backend_dev_buffer_type(each.device);
    each.experts  = expert_memory(name);

    each.lent_type                    = *each.memory;
    each.lent_type.iface.alloc_buffer = allocate;
    each.lent_type.device             = each.device;
    each.lent_device                  = {iface_of(false), nullptr, &each.lent_type};
    each.backend.iface.get_name       = backend_name;
    each.backend.iface.graph_compute  = compute;
    each.backend.device               = &each.lent_device;
    each.backend.context              = &each;

    each.store_name                = ggml_backend_buft_name(each.experts);
    each.store_type                = *each.experts; // with the store's alignment
    each.store_type.iface.get_name = [](ggml_backend_buffer_type_t type) {
        return static_cast<Device *>(type->context)->store_name.c_str();
    };
    each.store_type.iface.alloc_buffer = allocate_store;
    each.store_type.device             = &each.store_device;
    each.store_type.context            = &each;
    each.store_device                  = {iface_of(true), nullptr, &each.store_type};
    each.store.iface.get_name          = backend_name;
    each.store.iface.graph_compute     = compute_nothing;
    each.store.device                  = &each.store_device;
    each.store.context                 = &each;
}

std::vector<ggml_backend_t> SplitClient::devices() {
    std::vector<ggml_backend_t> found;
    for (Device & each : devices_) {
        found.push_back(&each.backend);
    }
    return found;
}

std::vector<ggml_backend_t> SplitClient::stores() {
    std::vector<ggml_backend_t> found;
    for (Device & each : devices_) {
        found.push_back(&each.store);
    }
    return found;
}

void SplitClient::begin() {
    for (Device & each : devices_) {
        each.stream = each.stream != nullptr ? each.stream : ggml_backend_dev_init(each.device, nullptr);
        if (each.stream == nullptr) {
            throw DeviceError(std::string("the device ") + ggml_backend_dev_description(each.device) +
                              " gives no stream");
        }
        stream_backend_set_n_threads(each.stream, n_threads_);
    }
    here = this;
}

void SplitClient::end() {
    here = here == this ? nullptr : here;
    for (Device & each : devices_) {
        ggml_backend_free(std::exchange(each.stream, nullptr));
    }
    scope_.reset();
    const std::lock_guard lock(mutex_);
    has_left_ = true;
    changed_.notify_all();
}

// ---- buffers and graphs, on the thread that serves

// A client that loads two models at once, while one of them computes, has more handles than models. Each handle has
// slots of its own then.
void SplitClient::begin_model(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (scope_ == nullptr || !is_loading_) {
        scope_.reset();
        scope_ = std::make_unique<LoadScope>();
        models_.push_back({std::static_pointer_cast<ModelExperts>(scope_->experts())});
        is_loading_ = true;
    }
    models_.back().bytes += bytes;
}

ggml_backend_buffer_t SplitClient::allocate_store(ggml_backend_buffer_type_t type, size_t size) {
    Device &     device    = *static_cast<Device *>(type->context);
    const size_t available = available_memory();
    if (available > 0 && size > available) { // the system would end a process later
        GGML_LOG_ERROR("spac: %zu MiB for experts are more than the %zu MiB that the machine has free\n", size >> 20,
                       available >> 20);
        return nullptr;
    }
    device.client->begin_model(size);
    return ggml_backend_buft_alloc_buffer(device.experts, size);
}

// Slots take the memory that is left, so what comes later may need some of it.
ggml_backend_buffer_t SplitClient::allocate(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_type_t memory = ggml_backend_dev_buffer_type(type->device);
    ggml_backend_buffer_t      buffer = ggml_backend_buft_alloc_buffer(memory, size);
    if (buffer == nullptr && here != nullptr) {
        const std::lock_guard lock(here->computing_);
        buffer = here->drop_slots() ? ggml_backend_buft_alloc_buffer(memory, size) : nullptr;
    }
    return buffer;
}

// Gives up the slots of all models, between graphs. The policy attaches as many as fit then. Returns true if there were
// any.
bool SplitClient::drop_slots() {
    bool had_some = false;
    for (const auto & experts : models()) {
        try {
            if (experts->slots().n_slots > 0) {
                experts->attach_slots(0, {});
                had_some = true;
            }
        } catch (const Error &) { // its model is gone
        }
    }
    return had_some;
}

ggml_status SplitClient::compute(ggml_backend_t backend, ggml_cgraph * graph) {
    Device & device = *static_cast<Device *>(backend->context);
    return device.stream == nullptr ? ggml_backend_graph_compute(device.plain, graph)
                                    : device.client->compute_split(device, graph);
}

ggml_status SplitClient::compute_split(Device & device, ggml_cgraph * graph) {
    if (graph->uid == 0) { // a graph that comes again keeps its number, and with it what is prepared
        graph->uid = ggml_graph_next_uid();
    }
    const auto  experts = weights_.replace(graph);
    ggml_status status  = GGML_STATUS_FAILED;
    {
        const std::lock_guard lock(computing_);
        status = ggml_backend_graph_compute(device.stream, graph);
        if (status == GGML_STATUS_ALLOC_FAILED && drop_slots()) {
            status = ggml_backend_graph_compute(device.stream, graph);
        }
    }
    if (status == GGML_STATUS_ALLOC_FAILED) { // ggml's server would end the process
        throw InputError(std::string("the device ") + ggml_backend_dev_description(device.device) +
                         " has no memory for a graph: give it fewer slots or smaller batches");
    }
    if (experts != nullptr) {
        const std::lock_guard lock(mutex_);
        is_loading_ = false;
        const auto model =
            std::find_if(models_.begin(), models_.end(), [&](const Model & each) { return each.experts == experts; });
        if (model != models_.end()) {
            model->is_known = model->is_known || ++model->n_graphs >= most_unknown ||
                              weights_.bytes_met(experts.get()) >= model->bytes;
        }
        ++n_graphs_;
        changed_.notify_all();
    }
    return status;
}

// ---- the policy's thread

int64_t SplitClient::await_graph(int64_t known) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return has_left_ || n_graphs_ > known; });
    return has_left_ ? -1 : n_graphs_;
}

std::vector<std::shared_ptr<Experts>> SplitClient::models() const {
    const std::lock_guard                 lock(mutex_);
    std::vector<std::shared_ptr<Experts>> known;
    for (const Model & each : models_) {
        if (each.is_known && !each.experts->is_gone()) {
            known.push_back(each.experts);
        }
    }
    return known;
}

} // namespace spac
