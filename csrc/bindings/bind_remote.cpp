// Bindings of RPC servers: those of other machines, and this machine's own.
#include "backend/remote/remote_servers.h"
#include "backend/remote/rpc_server.h"
#include "bindings/bindings.h"
#include "session/remote_layers.h"

#include <pybind11/stl.h>

#include <memory>

namespace py = pybind11;

void bind_remote(py::module_ & m) {
    using py::arg;
    using spac::LentDevice;
    using spac::RemoteDevice;
    using spac::RemoteServer;
    using spac::RpcServer;
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

    m.def("host_output", &spac::host_output,
          "Return the address of tensor_buft_overrides that keep the output matrix in host memory.");

    py::class_<LentDevice>(m, "LentDevice", "A device that an RPC server lends. Memory is in bytes.")
        .def_readonly("name", &LentDevice::name)
        .def_readonly("description", &LentDevice::description)
        .def_readonly("memory_free", &LentDevice::free)
        .def_readonly("memory_total", &LentDevice::total);
    py::class_<RpcServer>(m, "RpcServer", "A server that lends devices to a client on another machine.")
        .def(py::init<const std::vector<std::string> &, int, const std::string &>(), arg("devices"), arg("n_threads"),
             arg("cache"))
        .def_property_readonly("devices", &RpcServer::devices)
        .def("serve", &RpcServer::serve, arg("fd"), Release());
    m.def("rpc_version", &spac::rpc_version_text, "Return the version of the RPC protocol.");
}
