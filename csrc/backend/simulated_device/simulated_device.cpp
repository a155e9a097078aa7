#include "backend/simulated_device/simulated_device.h"

#include "backend/device/capabilities.h"
#include "backend/device/device.h"
#include "core/error.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace spac {
namespace {

std::mutex devices_mutex;

// Returns all simulated devices. They are never destroyed, since models and contexts hold their addresses.
std::vector<std::unique_ptr<SimulatedDevice>> & all_devices() {
    static auto * devices = new std::vector<std::unique_ptr<SimulatedDevice>>;
    return *devices;
}

SimulatedDevice & device_at(size_t index) {
    const std::lock_guard lock(devices_mutex);
    auto &                devices = all_devices();
    while (devices.size() <= index) {
        devices.push_back(std::make_unique<SimulatedDevice>(static_cast<int>(devices.size())));
    }
    return *devices[index];
}

size_t device_count() {
    const std::lock_guard lock(devices_mutex);
    return all_devices().size();
}

// ---- the backend (a stream)

SimulatedStream &   stream_of(ggml_backend_t backend) { return *static_cast<SimulatedStream *>(backend->context); }
SimulatedEventPtr & event_of(ggml_backend_event_t event) { return *static_cast<SimulatedEventPtr *>(event->context); }

const char * backend_name(ggml_backend_t) { return "simulated"; }

bool is_simulated(ggml_backend_t backend) { return backend->iface.get_name == backend_name; }

void backend_free(ggml_backend_t backend) {
    delete static_cast<SimulatedStream *>(backend->context);
    delete backend;
}

void backend_set_async(ggml_backend_t backend, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    simulated_check_source(data, size);
    stream_of(backend).write(static_cast<char *>(t->data) + offset, data, size);
}

void backend_get_async(ggml_backend_t backend, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    stream_of(backend).read(static_cast<const char *>(t->data) + offset, data, size);
}

bool lies_on(const ggml_tensor * t, ggml_backend_t backend) {
    ggml_backend_buffer_t buffer = t->view_src != nullptr ? t->view_src->buffer : t->buffer;
    return buffer != nullptr && buffer->buft == stream_of(backend).device().memory_type();
}

// Queues the copy on the source's stream. The other stream waits for it. Between two devices, it takes the link of the
// one that it goes to.
bool backend_copy_async(ggml_backend_t from, ggml_backend_t to, const ggml_tensor * src, ggml_tensor * dst) {
    if (!is_simulated(from) || !is_simulated(to) || !lies_on(src, from) || !lies_on(dst, to)) {
        return false;
    }
    SimulatedDevice & target = stream_of(to).device();
    const bool        inside = &target == &stream_of(from).device();
    stream_of(from).copy(dst->data, src->data, ggml_nbytes(src), inside ? nullptr : &target);
    if (from != to) {
        const auto copied = std::make_shared<SimulatedEvent>(stream_of(from).device());
        stream_of(from).record(copied);
        stream_of(to).wait(copied);
    }
    return true;
}

void backend_synchronize(ggml_backend_t backend) { stream_of(backend).synchronize(); }

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph * graph) { return stream_of(backend).launch(graph); }

void backend_event_record(ggml_backend_t backend, ggml_backend_event_t event) {
    stream_of(backend).record(event_of(event));
}

void backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    stream_of(backend).wait(event_of(event));
}

const ggml_backend_i backend_iface = {
    /* .get_name            = */ backend_name,
    /* .free                = */ backend_free,
    /* .set_tensor_async    = */ backend_set_async,
    /* .get_tensor_async    = */ backend_get_async,
    /* .set_tensor_2d_async = */ nullptr,
    /* .get_tensor_2d_async = */ nullptr,
    /* .cpy_tensor_async    = */ backend_copy_async,
    /* .synchronize         = */ backend_synchronize,
    /* .graph_plan_create   = */ nullptr,
    /* .graph_plan_free     = */ nullptr,
    /* .graph_plan_update   = */ nullptr,
    /* .graph_plan_compute  = */ nullptr,
    /* .graph_compute       = */ backend_compute,
    /* .event_record        = */ backend_event_record,
    /* .event_wait          = */ backend_event_wait,
    /* .graph_optimize      = */ nullptr,
};

ggml_guid_t backend_guid() {
    static ggml_guid guid = {0x73, 0x70, 0x61, 0x63, 0x2d, 0x73, 0x74, 0x61,
                             0x6e, 0x64, 0x2d, 0x69, 0x6e, 0x2d, 0x30, 0x31};
    return &guid;
}

// ---- the device

const char * device_name(ggml_backend_dev_t dev) { return simulated_of(dev).name(); }
const char * device_description(ggml_backend_dev_t) { return "asynchronous device for tests, in host memory"; }

void device_memory(ggml_backend_dev_t dev, size_t * free, size_t * total) {
    simulated_memory(simulated_of(dev), free, total);
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props             = {};
    props->name        = device_name(dev);
    props->description = device_description(dev);
    props->type        = device_type(dev);
    device_memory(dev, &props->memory_free, &props->memory_total);
    props->caps.async        = true;
    props->caps.host_buffer  = true;
    props->caps.events       = true;
    props->caps.mmap_support = true;
}

ggml_backend_t device_init(ggml_backend_dev_t dev, const char *) {
    return new ggml_backend{backend_guid(), backend_iface, dev, new SimulatedStream(simulated_of(dev))};
}

ggml_backend_buffer_type_t device_buft(ggml_backend_dev_t dev) { return simulated_of(dev).memory_type(); }
ggml_backend_buffer_type_t device_host_buft(ggml_backend_dev_t dev) { return simulated_of(dev).pinned_type(); }

bool device_supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    if (op->op == GGML_OP_MUL_MAT_ID && simulated_of(dev).settings().fault == SimulatedFault::no_kernel) {
        return false;
    }
    return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}

bool device_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) {
    return buft == simulated_of(dev).memory_type();
}

ggml_backend_event_t event_new(ggml_backend_dev_t dev) {
    return new ggml_backend_event{dev, new SimulatedEventPtr(std::make_shared<SimulatedEvent>(simulated_of(dev)))};
}

void event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    delete static_cast<SimulatedEventPtr *>(event->context);
    delete event;
}

void event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event) {
    const SimulatedEventPtr e = event_of(event);
    e->wait(e->last());
}

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
    /* .offload_op           = */ nullptr,
    /* .event_new            = */ event_new,
    /* .event_free           = */ event_free,
    /* .event_synchronize    = */ event_synchronize,
};

// ---- the registry entry: it has the driver's functions and those of capabilities.h, and is in no registry

Capabilities capabilities(ggml_backend_dev_t) {
    Capabilities result;
    result.masked_kernels = result.reaches_host = result.computes_repeats = true;
    result.shares_host_cores = result.shares_host_memory = true;
    return result;
}

StreamExtension * stream_extension(ggml_backend_t backend) { return &stream_of(backend); }

const char *       reg_name(ggml_backend_reg_t) { return "simulated"; }
size_t             reg_count(ggml_backend_reg_t) { return device_count(); }
ggml_backend_dev_t reg_device(ggml_backend_reg_t, size_t index) { return device_at(index).handle(); }

void * reg_proc(ggml_backend_reg_t, const char * name) {
    const std::string wanted = name;
    if (wanted == capabilities_function) {
        return reinterpret_cast<void *>(CapabilitiesFunction{capabilities});
    }
    if (wanted == stream_extension_function) {
        return reinterpret_cast<void *>(StreamExtensionFunction{stream_extension});
    }
    if (wanted == "ggml_backend_register_host_buffer" && simulated_settings().pin_limit_mb >= 0) {
        return reinterpret_cast<void *>(simulated_register);
    }
    if (wanted == "ggml_backend_unregister_host_buffer") {
        return reinterpret_cast<void *>(simulated_unregister);
    }
    return nullptr;
}

ggml_backend_reg_t registry_entry() {
    static ggml_backend_reg reg = {GGML_BACKEND_API_VERSION, {reg_name, reg_count, reg_device, reg_proc}, nullptr};
    return &reg;
}

} // namespace

SimulatedDevice::SimulatedDevice(int index)
    : name_(index == 0 ? "simulated" : "simulated" + std::to_string(index)), device_{device_iface, registry_entry(),
                                                                                     this},
      memory_type_(simulated_memory_type(*this)), pinned_type_(simulated_pinned_type(*this)) {}

void SimulatedDevice::set(const SimulatedSettings & settings) {
    const std::lock_guard lock(mutex_);
    settings_        = settings;
    uploads_to_fail_ = settings.fail_uploads;
}

SimulatedSettings SimulatedDevice::settings() const {
    const std::lock_guard lock(mutex_);
    return settings_;
}

bool SimulatedDevice::fail_upload() {
    if (uploads_to_fail_.load() <= 0) {
        return false;
    }
    --uploads_to_fail_;
    return true;
}

std::chrono::steady_clock::time_point SimulatedDevice::end_on_link(size_t bytes, double gb_s) {
    const auto            ns = std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / gb_s));
    const std::lock_guard lock(link_mutex_);
    link_free_at_ = std::max(link_free_at_, std::chrono::steady_clock::now()) + ns;
    return link_free_at_;
}

ggml_backend_dev_t simulated_device() { return device_at(0).handle(); }

SimulatedDevice & simulated_of(ggml_backend_dev_t device) { return *static_cast<SimulatedDevice *>(device->context); }

SimulatedFault simulated_fault(const std::string & name) {
    static const std::pair<const char *, SimulatedFault> known[] = {{"", SimulatedFault::none},
                                                                    {"no-kernel", SimulatedFault::no_kernel},
                                                                    {"unordered", SimulatedFault::unordered},
                                                                    {"no-signal", SimulatedFault::no_signal},
                                                                    {"slow-queue", SimulatedFault::slow_queue},
                                                                    {"dead", SimulatedFault::dead}};
    for (const auto & [word, fault] : known) {
        if (name == word) {
            return fault;
        }
    }
    throw InputError("unknown fault '" + name + "': no-kernel, unordered, no-signal, slow-queue, dead or nothing");
}

void set_simulated_device(const SimulatedSettings & settings, int index) {
    if (index < 0 || index >= most_simulated_devices) {
        throw InputError("there is no simulated device " + std::to_string(index) + ": choose 0 to " +
                         std::to_string(most_simulated_devices - 1));
    }
    static std::mutex     adding;
    const std::lock_guard lock(adding);
    for (size_t next = device_count(); next <= static_cast<size_t>(index); ++next) {
        add_inner_device(device_at(next).handle());
    }
    device_at(static_cast<size_t>(index)).set(settings);
}

SimulatedSettings simulated_settings(int index) {
    return index < static_cast<int>(device_count()) ? device_at(static_cast<size_t>(index)).settings()
                                                    : SimulatedSettings{};
}

} // namespace spac
