// The functions by which spac's sockets and ggml's RPC code tell each other of messages and losses. ggml's own
// transport.h declares the socket's class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
size_t     greeting_size(); // of the answer to it
// Returns the size of the answer to a request; 0 for a request without an answer.
size_t answer_size(uint8_t command, const void * request, size_t size);
// Writes the answer of a server that is lost: no memory, no data.
void write_empty_answer(uint8_t command, void * answer, size_t size);
// Returns the version in a server's answer to the greeting.
RpcVersion version_in(const void * answer);

// ---- splitting, which ggml's protocol does not know
//
// A server of spac's that splits says so in a byte of its answer to the greeting that ggml leaves zero. The byte has
// the number of stores. A client that takes the offer sends a command of spac's at once, and then sees the stores
// behind the devices. The first store belongs to the first device, and so on.

constexpr uint8_t split_command = 0xB5; // far above ggml's commands
constexpr int     most_stores   = 15;

void write_stores(void * answer, int n_stores); // into the answer to the greeting
int  stores_in(const void * answer);

struct SplitOffer {
    int                   n_stores = 0;
    std::function<void()> greeted, taken; // called on the thread that serves
};
// Sets the offer of the next socket that this thread makes for a connected client. It has to outlive the socket.
void set_offer(const SplitOffer * offer);

// ---- what is known of connections (rpc_socket.cpp)

double rpc_timeout();
// Returns why the connection to an address ("host:port") is lost; empty if it is not.
std::string loss_of(const std::string & address);
void        forget_loss(const std::string & address);
// Returns the number of stores that the server at an address has offered on its last connection.
int stores_of(const std::string & address);

// ---- ggml's RPC client and server, as spac uses them (ggml_rpc.cpp)

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
