// The SPAC device: a ggml device that wraps another one, and its registration.
//
// To llama.cpp it is the one GPU of the machine. It forwards everything to the inner device and adds one buffer type,
// the expert store: it refuses mul_mat_id and add_id on weights in its own memory and accepts them in the store, so the
// loader puts all experts there (it tries a device's buffer types in turn) and leaves the rest of the model on the
// device. The inner device is taken out of ggml's registry, for with both registered llama.cpp would spread layers over
// both and copy nothing between them.

#include "backend/device.h"

#include "backend/abort_guard.h"
#include "backend/device_memory.h"
#include "backend/fault.h"
#include "backend/ggml_internals.h"
#include "backend/model_experts.h"
#include "backend/split_stream.h"
#include "backend/stand_in.h"
#include "backend/store.h"
#include "core/error.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <list>
#include <mutex>

namespace spac {
namespace {

std::mutex  registry_mutex;
std::string chosen_default;

// Hidden from llama.cpp's registry. Made when it is first asked for: the library's constructor fills it before this
// file's own objects are made, which would empty it again.
std::vector<ggml_backend_dev_t> & real_devices() {
    static auto * devices = new std::vector<ggml_backend_dev_t>;
    return *devices;
}

std::string lower(std::string s) {
    std::transform(s.begin(), s.end(), s.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return s;
}

ggml_backend_dev_t find_inner(const std::string & name) {
    const std::string wanted = lower(name);
    for (ggml_backend_dev_t dev : real_devices()) {
        if (lower(ggml_backend_dev_name(dev)) == wanted) {
            return dev;
        }
    }
    return wanted == "stand-in" ? stand_in_device() : nullptr;
}

// ---- a wrapping device

class Device {
  public:
    // With an empty name the inner device is the default one, looked up when it is first needed.
    explicit Device(std::string inner_name);

    ggml_backend_dev_t handle() { return &device_; }
    Store &            store() { return store_; }

    ggml_backend_dev_t inner() {
        const std::lock_guard lock(registry_mutex);
        if (inner_ == nullptr) {
            std::string name = inner_name_.empty() ? chosen_default : inner_name_;
            if (name.empty()) {
                name = real_devices().empty() ? "stand-in" : ggml_backend_dev_name(real_devices().front());
            }
            inner_ = find_inner(name);
            watch_memory(inner_);
        }
        return inner_;
    }
    bool resolved() const { return inner_ != nullptr; }

    ggml_backend_buffer_type_t extra_bufts[2];

  private:
    std::string         inner_name_;
    ggml_backend_dev_t  inner_ = nullptr;
    ggml_backend_device device_;
    Store               store_;
};

Device &           device_of(ggml_backend_dev_t dev) { return *static_cast<Device *>(dev->context); }
ggml_backend_dev_t inner_of(ggml_backend_dev_t dev) { return device_of(dev).inner(); }
Device &           default_wrapper();

// ---- the backend (a stream)

SplitStream &  stream_of(ggml_backend_t backend) { return *static_cast<SplitStream *>(backend->context); }
ggml_backend_t inner_of(ggml_backend_t backend) { return stream_of(backend).inner(); }

const char * backend_name(ggml_backend_t) { return "SPAC"; }

void backend_free(ggml_backend_t backend) {
    delete static_cast<SplitStream *>(backend->context);
    delete backend;
}

bool is_spac(ggml_backend_t backend) { return backend->iface.get_name == backend_name; }

void backend_set_async(ggml_backend_t b, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    ggml_backend_tensor_set_async(inner_of(b), t, data, offset, size);
}
void backend_get_async(ggml_backend_t b, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    ggml_backend_tensor_get_async(inner_of(b), t, data, offset, size);
}
bool backend_cpy_async(ggml_backend_t from, ggml_backend_t to, const ggml_tensor * src, ggml_tensor * dst) {
    ggml_backend_t inner = inner_of(to);
    return inner->iface.cpy_tensor_async != nullptr &&
           inner->iface.cpy_tensor_async(is_spac(from) ? inner_of(from) : from, inner, src, dst);
}
void backend_synchronize(ggml_backend_t b) { stream_of(b).synchronize(); }

ggml_status backend_compute(ggml_backend_t b, ggml_cgraph * graph) {
    // no exception may cross llama.cpp's C interface: its caller learns from the status, the user from the log
    try {
        return stream_of(b).compute(graph);
    } catch (const MemoryError & error) {
        GGML_LOG_ERROR("spac: %s\n", error.what());
        return GGML_STATUS_ALLOC_FAILED;
    } catch (const std::exception & error) {
        GGML_LOG_ERROR("spac: %s\n", error.what());
        return GGML_STATUS_FAILED;
    }
}

void backend_event_record(ggml_backend_t b, ggml_backend_event_t event) {
    ggml_backend_event_record(event, inner_of(b));
}
void backend_event_wait(ggml_backend_t b, ggml_backend_event_t event) { ggml_backend_event_wait(inner_of(b), event); }

// llama.cpp plans its largest graphs while it makes a context, before anything is computed.
void backend_optimize(ggml_backend_t b, ggml_cgraph * graph, ggml_backend_graph_optimize_params *) {
    try {
        stream_of(b).plan(graph);
    } catch (const std::exception & error) {
        GGML_LOG_ERROR("spac: %s\n", error.what());
        if (AbortGuard::here()) {
            throw; // the context's maker hears of it; else the graph fails when it is computed
        }
    }
}

ggml_backend_i backend_iface(ggml_backend_t inner) {
    ggml_backend_i iface   = {};
    iface.get_name         = backend_name;
    iface.free             = backend_free;
    iface.set_tensor_async = backend_set_async;
    iface.get_tensor_async = backend_get_async;
    iface.cpy_tensor_async = backend_cpy_async;
    iface.synchronize      = backend_synchronize;
    iface.graph_compute    = backend_compute;
    iface.event_record     = inner->iface.event_record ? backend_event_record : nullptr;
    iface.event_wait       = inner->iface.event_wait ? backend_event_wait : nullptr;
    iface.graph_optimize   = backend_optimize;
    return iface;
}

ggml_guid_t backend_guid() {
    static ggml_guid guid = {0x73, 0x70, 0x61, 0x63, 0x2d, 0x62, 0x61, 0x63,
                             0x6b, 0x65, 0x6e, 0x64, 0x2d, 0x30, 0x30, 0x31};
    return &guid;
}

// ---- the device interface

const char * device_name(ggml_backend_dev_t dev) { return dev == default_wrapper().handle() ? "SPAC0" : "SPAC"; }
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
}

ggml_backend_t device_init(ggml_backend_dev_t dev, const char *) {
    try {
        auto stream = std::make_unique<SplitStream>(inner_of(dev));
        auto iface  = backend_iface(stream->inner());
        return new ggml_backend{backend_guid(), iface, dev, stream.release()};
    } catch (const std::exception & error) {
        GGML_LOG_ERROR("spac: %s\n", error.what());
        return nullptr;
    }
}

ggml_backend_buffer_type_t device_buft(ggml_backend_dev_t dev) { return ggml_backend_dev_buffer_type(inner_of(dev)); }
ggml_backend_buffer_type_t device_host_buft(ggml_backend_dev_t dev) {
    return ggml_backend_dev_host_buffer_type(inner_of(dev));
}

bool device_supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    if (store_weight(op) != nullptr) {
        // what the device cannot do of a block, the host does
        return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
    }
    const ggml_tensor * weight = op->op == GGML_OP_MUL_MAT_ID ? op->src[0]
                                 : op->op == GGML_OP_ADD_ID   ? op->src[1]
                                                              : nullptr;
    if (weight != nullptr && weight->op == GGML_OP_NONE && weight->buffer != nullptr) {
        // sends expert weights to the store while the model loads; a number for every expert (the loader asks as if it
        // were a matrix) is better off on the device, whole
        return op->op == GGML_OP_MUL_MAT_ID && ggml_n_dims(weight) == 1;
    }
    for (const ggml_tensor * src : op->src) {
        if (src != nullptr && in_store(src)) {
            return false; // host memory to any other op: the CPU backend's
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

void set_n_threads(ggml_backend_t backend, int n_threads) { stream_of(backend).set_n_threads(n_threads); }

void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void * data) {
    stream_of(backend).set_abort(callback, data);
}

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
        return reinterpret_cast<void *>(set_n_threads);
    }
    if (wanted == "ggml_backend_set_abort_callback") {
        return reinterpret_cast<void *>(set_abort_callback);
    }
    return nullptr;
}

ggml_backend_reg_t registry_entry() {
    static ggml_backend_reg reg = {GGML_BACKEND_API_VERSION, {reg_name, reg_count, reg_device, reg_proc}, nullptr};
    return &reg;
}

Device::Device(std::string inner_name)
    : inner_name_(std::move(inner_name)), device_{device_iface, registry_entry(), this},
      store_([](void * self) { return static_cast<Device *>(self)->inner(); }, this) {
    extra_bufts[0] = store_.buffer_type();
    extra_bufts[1] = nullptr;
}

// Wrapping devices live as long as the process: models and contexts hold their addresses. (Deliberately never
// destroyed.)
Device & default_wrapper() {
    static auto * device = new Device("");
    return *device;
}

std::list<Device> & other_wrappers() {
    static auto * devices = new std::list<Device>;
    return *devices;
}

// Accelerators that ggml has registered leave its registry and stay usable through SPAC: cards, then what is built into
// a processor and shares its memory.
void hide_real_devices() {
    std::vector<ggml_backend_reg_t> regs;
    for (const auto type : {GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU}) {
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            ggml_backend_dev_t dev = ggml_backend_dev_get(i);
            if (ggml_backend_dev_type(dev) == type && dev->reg != registry_entry()) {
                real_devices().push_back(dev);
                if (std::find(regs.begin(), regs.end(), dev->reg) == regs.end()) {
                    regs.push_back(dev->reg);
                }
            }
        }
    }
    for (ggml_backend_reg_t reg : regs) {
        ggml_backend_unload(reg);
    }
}

// Runs when the library is loaded (ELF constructor).
[[gnu::constructor]] void register_spac() {
    // ggml-cuda registers host memory only where the user asks for it; SPAC's store is the case that it is made for
    setenv("GGML_CUDA_REGISTER_HOST", "1", 0);
    // a missing driver is no news for those who load the library: devices() tells what there is
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    hide_real_devices();
    ggml_log_set(nullptr, nullptr);
    ggml_backend_register(registry_entry());
}

std::atomic<Fault> fault_now{Fault::none};
std::atomic<int>   launch_ahead_now{-1}; // no choice
std::atomic<bool>  trust_masks_now{false};

std::string known_devices() {
    std::string names;
    for (const DeviceInfo & info : devices()) {
        names += (names.empty() ? "" : ", ") + lower(info.name);
    }
    return names;
}

} // namespace

// ---- device.h

std::vector<DeviceInfo> devices() {
    std::vector<ggml_backend_dev_t> all = real_devices();
    all.push_back(stand_in_device());
    std::vector<DeviceInfo> infos;
    for (ggml_backend_dev_t dev : all) {
        DeviceInfo info;
        info.name        = ggml_backend_dev_name(dev);
        info.description = ggml_backend_dev_description(dev);
        info.memory      = memory_of(dev);
        info.is_stand_in = dev == stand_in_device();
        infos.push_back(std::move(info));
    }
    return infos;
}

void * device_handle(const std::string & name) {
    ggml_backend_dev_t inner = find_inner(name);
    if (inner == nullptr) {
        throw InputError("unknown device '" + name + "': this machine has " + known_devices());
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
    other_wrappers().emplace_back(ggml_backend_dev_name(inner));
    known.emplace_back(inner, &other_wrappers().back());
    return other_wrappers().back().handle();
}

void set_memory_limit(const std::string & name, size_t bytes) {
    ggml_backend_dev_t inner = find_inner(name);
    if (inner == nullptr) {
        throw InputError("unknown device '" + name + "': this machine has " + known_devices());
    }
    set_memory_limit(inner, bytes);
}

void set_default_device(const std::string & name) {
    if (find_inner(name) == nullptr) {
        throw InputError("unknown device '" + name + "': this machine has " + known_devices());
    }
    const std::lock_guard lock(registry_mutex);
    if (default_wrapper().resolved()) {
        throw InputError("the default device is in use already: choose it before the first model is loaded");
    }
    chosen_default = name;
}

std::string default_device() { return ggml_backend_dev_name(default_wrapper().inner()); }

void set_launch_ahead(std::optional<bool> on) { launch_ahead_now = on ? int{*on} : -1; }

std::optional<bool> launch_ahead() {
    const int now = launch_ahead_now;
    return now < 0 ? std::nullopt : std::optional<bool>(now != 0);
}

void set_trust_device_masks(bool on) { trust_masks_now = on; }
bool trust_device_masks() { return trust_masks_now; }

void set_fault(const std::string & name) {
    if (name.empty()) {
        fault_now = Fault::none;
    } else if (name == "swap-slots") {
        fault_now = Fault::swap_slots;
    } else if (name == "drop-join") {
        fault_now = Fault::drop_join;
    } else if (name == "early-turn") {
        fault_now = Fault::early_turn;
    } else if (name == "early-release") {
        fault_now = Fault::early_release;
    } else if (name == "no-kernel") {
        fault_now = Fault::no_kernel;
    } else if (name == "compact") {
        fault_now = Fault::compact;
    } else {
        throw InputError("unknown fault '" + name +
                         "': swap-slots, drop-join, early-turn, early-release, no-kernel, compact or nothing");
    }
}

Fault fault() { return fault_now; }

} // namespace spac
