#include "backend/remote/rpc.h"

#include "backend/remote/rpc_socket.h"
#include "core/error.h"
#include "core/home_process.h"

#include <map>
#include <mutex>

namespace spac {

struct RemoteServer::Impl {
    HomeProcess               home;
    std::string               address;
    RpcConnection             connection;
    std::vector<RemoteDevice> devices;
};

RemoteServer::RemoteServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RemoteServer::~RemoteServer() {
    if (!impl_->home.is_here()) {
        static_cast<void>(impl_.release()); // the client's thread is not in this process, and would be waited for
        return;
    }
    const std::string address = impl_->address;
    impl_.reset();
    forget_loss(address);
}

const std::string & RemoteServer::address() const { return impl_->address; }

const std::vector<RemoteDevice> & RemoteServer::devices() const { return impl_->devices; }

std::string RemoteServer::loss() const { return loss_of(impl_->address); }

std::shared_ptr<RemoteServer> RemoteServer::open(const std::string & host, int port) {
    static auto &         mutex = *new std::mutex;
    static auto &         known = *new std::map<std::string, std::weak_ptr<RemoteServer>>;
    static int            count = 0;
    const std::lock_guard lock(mutex);

    auto impl     = std::make_unique<Impl>();
    impl->address = host + ":" + std::to_string(port);
    if (auto server = known[impl->address].lock()) {
        if (const std::string loss = server->loss(); !loss.empty()) {
            throw DeviceError(loss + " (close the model that uses it first)");
        }
        return server;
    }
    impl->connection = connect_rpc(impl->address + "#" + std::to_string(++count));
    for (ggml_backend_dev_t device : impl->connection.devices) {
        RemoteDevice each{reinterpret_cast<std::uintptr_t>(device), 0, 0};
        ggml_backend_dev_memory(device, &each.free, &each.total);
        ggml_backend_dev_buffer_type(device); // asks for its alignment while a loss can still be reported
        impl->devices.push_back(each);
    }
    if (const std::string loss = loss_of(impl->address); !loss.empty()) {
        throw InputError(loss);
    }
    if (impl->devices.empty()) {
        throw InputError("the RPC server " + impl->address + " offers no device");
    }
    const std::string address = impl->address;
    auto              server  = std::shared_ptr<RemoteServer>(new RemoteServer(std::move(impl)));
    known[address]            = server;
    return server;
}

std::string remote_loss(const void * device) {
    const std::string endpoint = endpoint_of(static_cast<ggml_backend_dev_t>(const_cast<void *>(device)));
    return endpoint.empty() ? "" : loss_of(endpoint.substr(0, endpoint.find('#')));
}

} // namespace spac
