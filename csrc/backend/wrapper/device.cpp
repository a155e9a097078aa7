// The SPAC devices: ggml devices that each wrap another one, and their registration.
//
// One of them is in the registry, and llama.cpp takes it for the machine's only GPU. A model may be loaded on several
// of them, and llama.cpp then spreads its layers over them. A SPAC device forwards everything to the inner device, and
// adds one buffer type, the device's expert store. It refuses mul_mat_id and add_id on weights in its own memory, and
// accepts them in the store. The loader tries a device's buffer types in turn, so it puts all experts into the store
// and the rest of the model on the device. The inner device is not in ggml's registry (device/device.h). If both were
// registered, llama.cpp would spread layers over both and copy nothing between them.

#include "backend/wrapper/device.h"

#include "backend/device/device.h"
#include "backend/device/ggml_internals.h"
#include "backend/experts/expert_store.h"
#include "backend/graph/moe_block.h"
#include "backend/simulated_device/simulated_device.h"
#include "core/error.h"

#include <cstdlib>
#include <list>
#include <mutex>

namespace spac {
namespace {

std::mutex  registry_mutex;
std::string chosen_default;

// ---- a wrapping device

class Device {
  public:
    // With an empty name, the inner device is the default one, which is looked up when it is first needed.
    Device(std::string name, std::string inner_name);

    ggml_backend_dev_t handle() { return &device_; }
    const char *       name() const { return name_.c_str(); }
    Store &            store() { return store_; }

    ggml_backend_dev_t inner() {
        const std::lock_guard lock(registry_mutex);
        if (inner_ == nullptr) {
            const std::string & name = inner_name_.empty() ? chosen_default : inner_name_;
            inner_                   = name.empty() ? first_inner_device() : inner_device(name);
            watch_memory(inner_);
        }
        return inner_;
    }
    bool resolved() const { return inner_ != nullptr; }

    ggml_backend_buffer_type_t extra_bufts[2];

  private:
    const std::string   name_;
    std::string         inner_name_;
    ggml_backend_dev_t  inner_ = nullptr;
    ggml_backend_device device_;
    Store               store_;
};

Device &           device_of(ggml_backend_dev_t dev) { return *static_cast<Device *>(dev->context); }
ggml_backend_dev_t inner_of(ggml_backend_dev_t dev) { return device_of(dev).inner(); }
Device &           default_wrapper();

// ---- the device interface

const char * device_name(ggml_backend_dev_t dev) { return device_of(dev).name(); }
const char * device_description(ggml_backend_dev_t dev) { return ggml_backend_dev_description(inner_of(dev)); }
void         device_memory(ggml_backend_dev_t dev, size_t * free, size_t * total) {
            const DeviceMemory memory = memory_of(inner_of(dev));
            *free                     = memory.free;
            *total                    = memory.size();
}
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    ggml_backend_dev_get_props(inner_of(dev), props);
    props->name                      = device_name(dev);
    props->type                      = device_type(dev);
    props->caps.buffer_from_host_ptr = false;
    // without events, llama.cpp does not let several devices compute several batches at once, for which a graph's
    // inputs would have several copies, and the host's parts would wait for each other
    props->caps.events = false;
}

ggml_backend_t device_init(ggml_backend_dev_t dev, const char *) { return new_stream_backend(dev, inner_of(dev)); }

ggml_backend_buffer_type_t device_buft(ggml_backend_dev_t dev) { return ggml_backend_dev_buffer_type(inner_of(dev)); }
ggml_backend_buffer_type_t device_host_buft(ggml_backend_dev_t dev) {
    return ggml_backend_dev_host_buffer_type(inner_of(dev));
}

bool device_supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    if (const ggml_tensor * stored = store_weight(op); stored != nullptr) {
        // the host computes the parts of a block that the device cannot; a block belongs to the device of its store
        return device_of_store(stored) == inner_of(dev) &&
               ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
    }
    const ggml_tensor * weight = op->op == GGML_OP_MUL_MAT_ID ? op->src[0]
                                 : op->op == GGML_OP_ADD_ID   ? op->src[1]
                                                              : nullptr;
    if (weight != nullptr && weight->op == GGML_OP_NONE && weight->buffer != nullptr) {
        // refuses expert weights while the model loads, so that they go to the store; accepts a table of one number per
        // expert (the loader asks as if it were a matrix), which is better placed on the device as a whole
        return op->op == GGML_OP_MUL_MAT_ID && ggml_n_dims(weight) == 1;
    }
    for (const ggml_tensor * src : op->src) {
        if (src != nullptr && in_store(src)) {
            return false; // any other op on host memory belongs to the CPU backend
        }
    }
    return ggml_backend_dev_supports_op(inner_of(dev), op);
}

bool device_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) {
    return buft == device_of(dev).store().buffer_type() || ggml_backend_dev_supports_buft(inner_of(dev), buft);
}

bool device_offload_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    for (const ggml_tensor * src : op->src) {
        if (src != nullptr && in_store(src)) {
            return false;
        }
    }
    return ggml_backend_dev_offload_op(inner_of(dev), op);
}

ggml_backend_event_t event_new(ggml_backend_dev_t dev) { return ggml_backend_event_new(inner_of(dev)); }
void                 event_free(ggml_backend_dev_t, ggml_backend_event_t event) { ggml_backend_event_free(event); }
void event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event) { ggml_backend_event_synchronize(event); }

const ggml_backend_device_i device_iface = {
    /* .get_name             = */ device_name,
    /* .get_description      = */ device_description,
    /* .get_memory           = */ device_memory,
    /* .get_type             = */ device_type,
    /* .get_props            = */ device_props,
    /* .init_backend         = */ device_init,
    /* .get_buffer_type      = */ device_buft,
    /* .get_host_buffer_type = */ device_host_buft,
    /* .buffer_from_host_ptr = */ nullptr,
    /* .supports_op          = */ device_supports_op,
    /* .supports_buft        = */ device_supports_buft,
    /* .offload_op           = */ device_offload_op,
    /* .event_new            = */ event_new,
    /* .event_free           = */ event_free,
    /* .event_synchronize    = */ event_synchronize,
};

// ---- the registry entry

ggml_backend_buffer_type_t * extra_bufts(ggml_backend_dev_t dev) { return device_of(dev).extra_bufts; }

const char *       reg_name(ggml_backend_reg_t) { return "SPAC"; }
size_t             reg_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t reg_device(ggml_backend_reg_t, size_t) { return default_wrapper().handle(); }

void * reg_proc(ggml_backend_reg_t, const char * name) {
    const std::string wanted = name;
    if (wanted == "ggml_backend_dev_get_extra_bufts") {
        return reinterpret_cast<void *>(extra_bufts);
    }
    if (wanted == "ggml_backend_set_n_threads") {
        return reinterpret_cast<void *>(stream_backend_set_n_threads);
    }
    if (wanted == "ggml_backend_set_abort_callback") {
        return reinterpret_cast<void *>(stream_backend_set_abort_callback);
    }
    return nullptr;
}

ggml_backend_reg_t registry_entry() {
    static ggml_backend_reg reg = {GGML_BACKEND_API_VERSION, {reg_name, reg_count, reg_device, reg_proc}, nullptr};
    return &reg;
}

Device::Device(std::string name, std::string inner_name)
    : name_(std::move(name)), inner_name_(std::move(inner_name)), device_{device_iface, registry_entry(), this},
      store_(
          name_ + "_Store", [](void * self) { return static_cast<Device *>(self)->inner(); }, this) {
    extra_bufts[0] = store_.buffer_type();
    extra_bufts[1] = nullptr;
}

// Returns the default wrapper. Wrappers are never destroyed, since models and contexts hold their addresses.
Device & default_wrapper() {
    static auto * device = new Device("SPAC0", "");
    return *device;
}

std::list<Device> & other_wrappers() {
    static auto * devices = new std::list<Device>;
    return *devices;
}

// Runs when the library is loaded (ELF constructor).
[[gnu::constructor]] void register_spac() {
    // ggml-cuda registers host memory only on request, and the store needs it
    setenv("GGML_CUDA_REGISTER_HOST", "1", 0);
    // a missing driver needs no message when the library is loaded, since devices() lists the devices
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    hide_real_devices();
    add_inner_device(simulated_device());
    ggml_log_set(nullptr, nullptr);
    ggml_backend_register(registry_entry());
}

} // namespace

// ---- the header's functions

void * device_handle(const std::string & name, bool split) {
    ggml_backend_dev_t inner = inner_device(name);
    if (!split) {
        watch_memory(inner);
        return inner;
    }
    if (default_wrapper().inner() == inner) {
        return default_wrapper().handle();
    }
    const std::lock_guard                                     lock(registry_mutex);
    static std::list<std::pair<ggml_backend_dev_t, Device *>> known;
    for (const auto & [dev, wrapper] : known) {
        if (dev == inner) {
            return wrapper->handle();
        }
    }
    other_wrappers().emplace_back("SPAC" + std::to_string(other_wrappers().size() + 1), ggml_backend_dev_name(inner));
    known.emplace_back(inner, &other_wrappers().back());
    return other_wrappers().back().handle();
}

ggml_backend_buffer_type * expert_memory(const std::string & name) {
    return device_of(static_cast<ggml_backend_dev_t>(device_handle(name))).store().buffer_type();
}

void set_memory_limit(const std::string & name, size_t bytes) { set_memory_limit(inner_device(name), bytes); }

void set_default_device(const std::string & name) {
    inner_device(name); // throws if there is none
    const std::lock_guard lock(registry_mutex);
    if (default_wrapper().resolved()) {
        throw InputError("the default device is in use already: choose it before the first model is loaded");
    }
    chosen_default = name;
}

std::string default_device() { return ggml_backend_dev_name(default_wrapper().inner()); }

} // namespace spac
