// A server of ggml's RPC protocol, which lends this machine's devices to a client on another one.
//
// The protocol has no encryption and no key, and ggml's server trusts what a client sends. So only trusted machines may
// reach it.
#pragma once

#include "core/not_copied.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace spac {

class Experts;

struct LentDevice {
    std::string name;
    std::string description;
    size_t      free;  // bytes
    size_t      total; // bytes
};

class RpcServer : NotCopied {
  public:
    // Lends the devices of these names ("cpu" and those of devices()). `n_threads` compute on the CPU. Weights are kept
    // in the folder `cache`, so that a client need not send them again; empty: they are not. With `splits`, a client
    // that can do it may put experts into this machine's host memory, and devices but the CPU split the layers of
    // these. Throws InputError.
    RpcServer(const std::vector<std::string> & devices, int n_threads, const std::string & cache, bool splits = false);
    ~RpcServer();

    std::vector<LentDevice> devices() const;

  private:
    friend class ServedClient;

    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// One client of a server, which serves no other one meanwhile.
class ServedClient : NotCopied {
  public:
    explicit ServedClient(std::shared_ptr<RpcServer> server);
    ~ServedClient();

    // Serves the client at the other end of a connected socket until it leaves or the socket is shut down, and closes
    // the socket. The client's memory is free then. Throws InputError for a message that cannot be used, after which
    // the server goes on, and DeviceError where ggml would have ended the process.
    void serve(int fd);

    // ---- the client's models whose experts are split here, for any thread
    // Waits until more than `known` graphs with such experts have been computed, and returns their number, or until the
    // client has left: then it returns -1.
    int64_t await_graph(int64_t known);
    // Returns the experts of the models that are loaded and whose layers are known.
    std::vector<std::shared_ptr<Experts>> models() const;
    // Holds up the next graph while the returned lock lives.
    std::unique_lock<std::mutex> pause();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Returns the version of the protocol.
std::string rpc_version_text();

} // namespace spac
