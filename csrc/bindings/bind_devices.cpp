// Bindings of the devices that can hold experts, of the simulated device's settings, and of RPC servers: those of other
// machines, and this machine's own.
#include "backend/device/device.h"
#include "backend/device/settings.h"
#include "backend/experts/experts.h"
#include "backend/remote/rpc.h"
#include "backend/simulated_device/settings.h"
#include "backend/wrapper/device.h"
#include "bindings/bindings.h"
#include "session/llama_models.h"

#include <pybind11/stl.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace py = pybind11;

namespace {

// A guard that begins and ends with a `with` block. Both ends must run on the same thread.
class GuardBlock {
  public:
    void enter() { guard_ = std::make_unique<spac::AbortGuard>(); }
    void exit(const py::args &) { guard_.reset(); }

  private:
    std::unique_ptr<spac::AbortGuard> guard_;
};

} // namespace

void bind_devices(py::module_ & m) {
    py::class_<GuardBlock>(m, "AbortGuard",
                           "A block in which loading a model raises an error where llama.cpp would end the process.")
        .def(py::init<>())
        .def("__enter__", &GuardBlock::enter)
        .def("__exit__", &GuardBlock::exit);

    using spac::DeviceMemory;
    py::class_<DeviceMemory>(m, "DeviceMemory", "A device's memory, in bytes.")
        .def_readonly("free", &DeviceMemory::free)
        .def_readonly("device_free", &DeviceMemory::device_free)
        .def_readonly("total", &DeviceMemory::total)
        .def_readonly("limit", &DeviceMemory::limit)
        .def_readonly("used", &DeviceMemory::used)
        .def_readonly("peak", &DeviceMemory::peak)
        .def_readonly("kernels", &DeviceMemory::kernels)
        .def_readonly("n_device_buffers", &DeviceMemory::n_device_buffers)
        .def_readonly("n_host_buffers", &DeviceMemory::n_host_buffers)
        .def_property_readonly("size", &DeviceMemory::size);

    using spac::DeviceInfo;
    py::class_<DeviceInfo>(m, "DeviceInfo", "A device that experts can be put on.")
        .def_readonly("name", &DeviceInfo::name)
        .def_readonly("description", &DeviceInfo::description)
        .def_readonly("pci", &DeviceInfo::pci)
        .def_readonly("memory", &DeviceInfo::memory)
        .def_property_readonly("memory_free", [](const DeviceInfo & info) { return info.memory.free; })
        .def_property_readonly("memory_total", [](const DeviceInfo & info) { return info.memory.total; })
        .def_readonly("reads_masks", &DeviceInfo::reads_masks)
        .def_readonly("shares_host_cores", &DeviceInfo::shares_host_cores)
        .def_readonly("shares_host_memory", &DeviceInfo::shares_host_memory)
        .def_readonly("is_integrated", &DeviceInfo::is_integrated)
        .def("__repr__", [](const DeviceInfo & info) { return "DeviceInfo(name='" + info.name + "')"; });

    m.def("devices", &spac::devices, "Return all devices that can be chosen, real ones first.");
    m.def(
        "device_handle",
        [](const std::string & name, bool split) {
            return reinterpret_cast<std::uintptr_t>(spac::device_handle(name, split));
        },
        py::arg("name"), py::arg("split") = true,
        "Return the ggml_backend_dev_t for llama_model_params.devices, as an integer.");
    py::class_<spac::SlotLayers>(m, "SlotLayers",
                                 "llama_model_params.tensor_buft_overrides that put experts of some layers elsewhere.")
        .def(py::init<>())
        .def("add", &spac::SlotLayers::add, py::arg("device"), py::arg("layers"))
        .def("keep_experts", &spac::SlotLayers::keep_experts, py::arg("layers"))
        .def("keep_output", &spac::SlotLayers::keep_output)
        .def_property_readonly("address", &spac::SlotLayers::address);
    m.def("set_memory_limit", py::overload_cast<const std::string &, size_t>(&spac::set_memory_limit), py::arg("name"),
          py::arg("bytes"));
    m.def("take_memory_refusal", []() -> py::object {
        const auto refusal = spac::take_memory_refusal();
        return refusal.device.empty() ? py::object(py::none())
                                      : py::make_tuple(refusal.device, refusal.asked, refusal.memory);
    });
    m.def("take_kernel_refusal", &spac::take_kernel_refusal, py::arg("device"));
    m.def("set_default_device", &spac::set_default_device, py::arg("name"));
    m.def("default_device", &spac::default_device);

    const spac::SimulatedSettings preset;
    m.def(
        "set_simulated_device",
        [](double upload_gb_s, double latency_us, double delay_us, long memory_mb, int fail_uploads, int n_threads,
           double spin_us, long pin_limit_mb, double kernel_share, const std::string & fault, int index) {
            spac::set_simulated_device({upload_gb_s, latency_us, delay_us, memory_mb, fail_uploads, n_threads, spin_us,
                                        pin_limit_mb, kernel_share, spac::simulated_fault(fault)},
                                       index);
        },
        py::kw_only(), py::arg("upload_gb_s") = preset.upload_gb_s, py::arg("latency_us") = preset.latency_us,
        py::arg("delay_us") = preset.delay_us, py::arg("memory_mb") = preset.memory_mb,
        py::arg("fail_uploads") = preset.fail_uploads, py::arg("n_threads") = preset.n_threads,
        py::arg("spin_us") = preset.spin_us, py::arg("pin_limit_mb") = preset.pin_limit_mb,
        py::arg("kernel_share") = preset.kernel_share, py::arg("fault") = "", py::arg("index") = 0,
        "Set a simulated device's speed and faults, from now on. An index above 0 makes further devices.");
    m.def(
        "simulated_device",
        [](int index) {
            const auto settings = spac::simulated_settings(index);
            py::dict   result;
            result["upload_gb_s"]  = settings.upload_gb_s;
            result["latency_us"]   = settings.latency_us;
            result["delay_us"]     = settings.delay_us;
            result["memory_mb"]    = settings.memory_mb;
            result["fail_uploads"] = settings.fail_uploads;
            result["n_threads"]    = settings.n_threads;
            result["spin_us"]      = settings.spin_us;
            result["pin_limit_mb"] = settings.pin_limit_mb;
            result["kernel_share"] = settings.kernel_share;
            return result;
        },
        py::arg("index") = 0);
    m.def("set_launch_ahead", &spac::set_launch_ahead, py::arg("on"),
          "Choose if work after a layer's host part is queued before that part is done, from the next graph on. The "
          "device has to be able to wait for the host. None: on real devices, not on the simulated device.");
    m.def("set_hand_over_in_place", &spac::set_hand_over_in_place, py::arg("on"),
          "Choose if kernels read and write a layer's ids, input and rows in pinned host memory themselves, instead "
          "of copying them, for graphs prepared from now on. None: on GPUs that can, not on the simulated device.");
    m.def("set_gate_timeout", &spac::set_gate_timeout, py::arg("seconds"),
          "Set the seconds that a thread waits at a stream gate, from the next wait on. After that, the graph fails "
          "and launching ahead is switched off. None: 20 s; 0: for ever.");
    m.def("set_trust_device_masks", &spac::set_trust_device_masks, py::arg("on"),
          "Choose if devices read ids masks with their own kernels, for contexts made from now on. None: those whose "
          "kernels have been tried.");
    m.def(
        "set_upload_threads", &spac::set_upload_threads, py::arg("n"),
        "Set the threads that bring streamed experts from pageable to pinned memory, for weight streams made from now "
        "on. 0: the driver does it; -1: measured.");
    const spac::Pinning usual;
    m.def(
        "set_pinning",
        [](bool on, std::optional<size_t> limit, size_t slice) {
            spac::set_pinning({on, limit.value_or(spac::Pinning{}.limit), slice});
        },
        py::kw_only(), py::arg("on") = usual.on, py::arg("limit") = py::none(), py::arg("slice") = usual.slice,
        "Set how experts' mappings are registered with the device's driver, for models loaded from now on.");
}

void bind_remote(py::module_ & m) {
    using py::arg;
    using spac::RemoteDevice;
    using spac::RemoteServer;
    using spac::RpcServer;
    using spac::ServedDevice;
    using Release = py::call_guard<py::gil_scoped_release>;

    py::class_<RemoteDevice>(m, "RemoteDevice", "A device of an RPC server. Memory is in bytes.")
        .def_readonly("handle", &RemoteDevice::handle)
        .def_readonly("memory_free", &RemoteDevice::free)
        .def_readonly("memory_total", &RemoteDevice::total);
    py::class_<RemoteServer, std::shared_ptr<RemoteServer>>(m, "RemoteServer", "The connection to an RPC server.")
        .def(py::init(&RemoteServer::open), arg("host"), arg("port"), Release())
        .def_property_readonly("address", &RemoteServer::address)
        .def_property_readonly("devices", &RemoteServer::devices)
        .def_property_readonly("loss",
                               [](const RemoteServer & server) { return spac::bindings::message(server.loss()); });
    m.def("set_rpc_timeout", &spac::set_rpc_timeout, arg("seconds"),
          "Set the seconds for which an RPC server may be silent, from the next connection on.");

    py::class_<ServedDevice>(m, "ServedDevice", "A device that an RPC server lends. Memory is in bytes.")
        .def_readonly("name", &ServedDevice::name)
        .def_readonly("description", &ServedDevice::description)
        .def_readonly("memory_free", &ServedDevice::free)
        .def_readonly("memory_total", &ServedDevice::total);
    py::class_<RpcServer, std::shared_ptr<RpcServer>>(m, "RpcServer",
                                                      "A server that lends devices to a client on another machine.")
        .def(py::init<const std::vector<std::string> &, int, const std::string &>(), arg("devices"), arg("n_threads"),
             arg("cache"))
        .def_property_readonly("devices", &RpcServer::devices)
        .def("serve", &RpcServer::serve, arg("fd"), Release());
    m.def("rpc_version", &spac::rpc_version_text, "Return the version of the RPC protocol.");
}
