// ggml's RPC protocol: a server that lends this machine's devices to a client on another one, and the servers on other
// machines whose devices hold layers of a model.
//
// The protocol has no encryption and no key, and ggml's server trusts what a client sends. So only trusted machines may
// reach it.
#pragma once

#include "core/not_copied.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace spac {

struct ServedDevice {
    std::string name;
    std::string description;
    size_t      free;  // bytes
    size_t      total; // bytes
};

class RpcServer : NotCopied {
  public:
    // Lends the devices of these names ("cpu" and those of devices()). `n_threads` compute on the CPU. Weights are kept
    // in the folder `cache`, so that a client need not send them again; empty: they are not. Throws InputError.
    RpcServer(const std::vector<std::string> & devices, int n_threads, const std::string & cache);
    ~RpcServer();

    std::vector<ServedDevice> devices() const;

    // Serves the client at the other end of a connected socket until it leaves or the socket is shut down, and closes
    // the socket. The client's memory is free then. There is one client at a time. Throws InputError for a message that
    // cannot be used, after which the server goes on, and DeviceError where ggml would have ended the process.
    void serve(int fd) const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Returns the version of the protocol.
std::string rpc_version_text();

// Servers of ggml's RPC protocol on other machines, whose devices hold layers of a model.
//
// ggml's client ends the process where a connection fails. So spac has its own sockets below it (rpc_socket.cpp): a
// connection that is lost stays lost, what is sent to it vanishes, and its answers are empty. The client goes on, the
// next graph on that server fails with a status, and the session reports the loss instead of the results.

struct RemoteDevice {
    std::uintptr_t handle; // a ggml_backend_dev_t for llama_model_params.devices
    size_t         free;   // bytes, when the server was opened
    size_t         total;  // bytes
};

// A connection to one server. Models that use its devices have to be freed before it.
class RemoteServer : NotCopied {
  public:
    // Returns the process's connection to a server; makes it if there is none. Throws InputError if the server cannot
    // be reached, has another version or is no RPC server, and DeviceError if a model still uses a connection that is
    // lost.
    static std::shared_ptr<RemoteServer> open(const std::string & host, int port);
    ~RemoteServer();

    const std::string &               address() const; // "host:port"
    const std::vector<RemoteDevice> & devices() const;
    std::string                       loss() const; // why the connection is lost; empty if it is not

  private:
    struct Impl;
    explicit RemoteServer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// Sets the seconds for which a server may be silent while something is expected of it, from the next connection on.
void set_rpc_timeout(double seconds);

// Returns why a device's connection is lost. Empty: it is not, or this is no remote device. `device` is a
// ggml_backend_dev_t.
std::string remote_loss(const void * device);

} // namespace spac
