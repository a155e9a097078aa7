// The functions by which spac's sockets and ggml's RPC code tell each other of messages and losses. ggml's own
// transport.h declares the socket's class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ggml-backend.h"

namespace spac {

// The version of the protocol that this build speaks.
struct RpcVersion {
    int         major;
    int         minor;
    int         patch;
    std::string text() const {
        return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
    }
};

// ---- what ggml's RPC code knows of messages (ggml_rpc.cpp)

RpcVersion rpc_version();
bool       is_greeting(uint8_t command);
// Returns the size of the answer to a request; 0 for a request without an answer.
size_t answer_size(uint8_t command, const void * request, size_t size);
// Writes the answer of a server that is lost: no memory, no data.
void write_empty_answer(uint8_t command, void * answer, size_t size);
// Returns the version in a server's answer to the greeting.
RpcVersion version_in(const void * answer);

// ---- what is known of connections (rpc_socket.cpp)

double rpc_timeout();
// Returns why the connection to an address ("host:port") is lost; empty if it is not.
std::string loss_of(const std::string & address);
void        forget_loss(const std::string & address);

// ---- ggml's RPC client and server, as spac uses them (ggml_rpc.cpp)

// A connection of ggml's client: what keeps it open, and the devices behind it.
struct RpcConnection {
    std::shared_ptr<void>           keeper;
    std::vector<ggml_backend_dev_t> devices;
};

// Connects to a server. `endpoint` is "host:port", with any text behind it: ggml keeps what it knows of an endpoint for
// ever, so a new connection has a new text. Throws InputError.
RpcConnection connect_rpc(const std::string & endpoint);

// Returns a remote device's endpoint; empty for another device.
std::string endpoint_of(ggml_backend_dev_t device);

// Serves the client at the other end of a connected socket until it leaves, and closes the socket. `cache` is a folder,
// or null.
void serve_rpc_client(std::vector<ggml_backend_t> devices, const char * cache, int fd);

} // namespace spac
