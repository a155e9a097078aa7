// ggml's RPC client and server, as spac uses them.
#pragma once

#include "ggml-backend.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace spac {

// A connection of ggml's client: what keeps it open, and the devices behind it.
struct RpcConnection {
    std::shared_ptr<void>           keeper;
    std::vector<ggml_backend_dev_t> devices;
    // The stores of the first devices, which split their layers. Their buffer types are for experts. They compute
    // nothing, and take no part in llama_model_params.devices.
    std::vector<ggml_backend_dev_t> stores;
};

// Connects to a server. `endpoint` is "host:port", with any text behind it: ggml keeps what it knows of an endpoint for
// ever, so a new connection has a new text. Throws InputError.
RpcConnection connect_rpc(const std::string & endpoint);

// Returns a remote device's endpoint; empty for another device.
std::string endpoint_of(ggml_backend_dev_t device);

// A server lends devices and the stores of the first ones. It calls `split` for a client that uses them.
struct Lending {
    std::vector<ggml_backend_t> devices, stores;
    std::function<void()>       split;
};

// Serves the client at the other end of a connected socket until it leaves, and closes the socket. `cache` is a folder,
// or null.
void serve_rpc_client(const Lending & lent, const char * cache, int fd);

} // namespace spac
