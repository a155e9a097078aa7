// Bindings of RPC servers: those of other machines, and this machine's own.
#include "backend/experts/experts.h"
#include "backend/remote/remote_servers.h"
#include "backend/remote/rpc_server.h"
#include "bindings/bindings.h"

#include <pybind11/stl.h>

#include <memory>
#include <mutex>
#include <utility>

namespace py = pybind11;

namespace {

// A pause between graphs that begins and ends with a `with` block. Both ends must run on the same thread.
class Pause {
  public:
    explicit Pause(std::shared_ptr<spac::ServedClient> client) : client_(std::move(client)) {}
    void enter() {
        const py::gil_scoped_release release;
        lock_ = client_->pause();
    }
    void exit(const py::args &) { lock_ = {}; }

  private:
    std::shared_ptr<spac::ServedClient> client_;
    std::unique_lock<std::mutex>        lock_;
};

} // namespace

void bind_remote(py::module_ & m) {
    using py::arg;
    using spac::LentDevice;
    using spac::RemoteDevice;
    using spac::RemoteServer;
    using spac::RpcServer;
    using spac::ServedClient;
    using Release = py::call_guard<py::gil_scoped_release>;

    py::class_<RemoteDevice>(m, "RemoteDevice", "A device of an RPC server. Memory is in bytes.")
        .def_readonly("handle", &RemoteDevice::handle)
        .def_readonly("memory_free", &RemoteDevice::free)
        .def_readonly("memory_total", &RemoteDevice::total)
        .def_readonly("store", &RemoteDevice::store)
        .def_readonly("store_free", &RemoteDevice::store_free);
    py::class_<RemoteServer, std::shared_ptr<RemoteServer>>(m, "RemoteServer", "The connection to an RPC server.")
        .def(py::init(&RemoteServer::open), arg("host"), arg("port"), Release())
        .def_property_readonly("address", &RemoteServer::address)
        .def_property_readonly("devices", &RemoteServer::devices)
        .def_property_readonly("loss",
                               [](const RemoteServer & server) { return spac::bindings::message(server.loss()); });
    m.def("set_rpc_timeout", &spac::set_rpc_timeout, arg("seconds"),
          "Set the seconds for which an RPC server may be silent, from the next connection on.");

    py::class_<LentDevice>(m, "LentDevice", "A device that an RPC server lends. Memory is in bytes.")
        .def_readonly("name", &LentDevice::name)
        .def_readonly("description", &LentDevice::description)
        .def_readonly("memory_free", &LentDevice::free)
        .def_readonly("memory_total", &LentDevice::total);
    py::class_<RpcServer, std::shared_ptr<RpcServer>>(m, "RpcServer",
                                                      "A server that lends devices to a client on another machine.")
        .def(py::init<const std::vector<std::string> &, int, const std::string &, bool>(), arg("devices"),
             arg("n_threads"), arg("cache"), arg("splits"))
        .def_property_readonly("devices", &RpcServer::devices);
    py::class_<Pause>(m, "Pause", "A `with` block in which a served client's next graph waits.")
        .def("__enter__", &Pause::enter)
        .def("__exit__", &Pause::exit);
    py::class_<ServedClient, std::shared_ptr<ServedClient>>(m, "ServedClient", "One client of a server.")
        .def(py::init<std::shared_ptr<RpcServer>>(), arg("server"))
        .def("serve", &ServedClient::serve, arg("fd"), Release())
        .def("await_graph", &ServedClient::await_graph, arg("known"), Release())
        .def_property_readonly("models", &ServedClient::models)
        .def("pause", [](std::shared_ptr<ServedClient> client) { return Pause(std::move(client)); });
    m.def("rpc_version", &spac::rpc_version_text, "Return the version of the RPC protocol.");
}
