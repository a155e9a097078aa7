// A server of ggml's RPC protocol, which lends this machine's devices to a client on another one.
//
// The protocol has no encryption and no key, and ggml's server trusts what a client sends. So only trusted machines may
// reach it.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace spac {

struct LentDevice {
    std::string name;
    std::string description;
    size_t      free;  // bytes
    size_t      total; // bytes
};

class RpcServer {
  public:
    // Lends the devices of these names ("cpu" and those of devices()). `n_threads` compute on the CPU. Weights are kept
    // in the folder `cache`, so that a client need not send them again; empty: they are not. Throws InputError.
    RpcServer(const std::vector<std::string> & devices, int n_threads, const std::string & cache);
    ~RpcServer();
    RpcServer(const RpcServer &)             = delete;
    RpcServer & operator=(const RpcServer &) = delete;

    std::vector<LentDevice> devices() const;

    // Serves the client at the other end of a connected socket until it leaves or the socket is shut down, and closes
    // the socket. The client's memory is free then. Throws InputError for a message that cannot be used, after which
    // the server goes on, and DeviceError where ggml would have ended the process.
    void serve(int fd);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Returns the version of the protocol.
std::string rpc_version_text();

} // namespace spac
