// ggml's RPC code is compiled into this file, because the sizes of its messages, its devices and its server's loop are
// known to that file alone.

#include "backend/remote/rpc_socket.h"
#include "core/error.h"
#include "ggml-rpc/ggml-rpc.cpp"

namespace spac {

// ---- messages

RpcVersion rpc_version() { return {RPC_PROTO_MAJOR_VERSION, RPC_PROTO_MINOR_VERSION, RPC_PROTO_PATCH_VERSION}; }

bool is_greeting(uint8_t command) { return command == RPC_CMD_HELLO; }

size_t answer_size(uint8_t command, const void * request, size_t size) {
    switch (command) {
    case RPC_CMD_HELLO:
        return sizeof(rpc_msg_hello_rsp);
    case RPC_CMD_DEVICE_COUNT:
        return sizeof(rpc_msg_device_count_rsp);
    case RPC_CMD_ALLOC_BUFFER:
        return sizeof(rpc_msg_alloc_buffer_rsp);
    case RPC_CMD_GET_ALLOC_SIZE:
        return sizeof(rpc_msg_get_alloc_size_rsp);
    case RPC_CMD_GET_ALIGNMENT:
        return sizeof(rpc_msg_get_alignment_rsp);
    case RPC_CMD_GET_MAX_SIZE:
        return sizeof(rpc_msg_get_max_size_rsp);
    case RPC_CMD_BUFFER_GET_BASE:
        return sizeof(rpc_msg_buffer_get_base_rsp);
    case RPC_CMD_SET_TENSOR_HASH:
        return sizeof(rpc_msg_set_tensor_hash_rsp);
    case RPC_CMD_COPY_TENSOR:
        return sizeof(rpc_msg_copy_tensor_rsp);
    case RPC_CMD_GET_DEVICE_MEMORY:
        return sizeof(rpc_msg_get_device_memory_rsp);
    case RPC_CMD_GET_TENSOR:
        return size == sizeof(rpc_msg_get_tensor_req) ? static_cast<const rpc_msg_get_tensor_req *>(request)->size : 0;
    default:
        return 0;
    }
}

void write_empty_answer(uint8_t command, void * answer, size_t size) {
    memset(answer, 0, size);
    if (command == RPC_CMD_BUFFER_GET_BASE) {
        static_cast<rpc_msg_buffer_get_base_rsp *>(answer)->base_ptr = 4096; // ggml refuses 0
    } else if (command == RPC_CMD_GET_ALIGNMENT) {
        static_cast<rpc_msg_get_alignment_rsp *>(answer)->alignment = 256; // ggml refuses 0
    }
}

RpcVersion version_in(const void * answer) {
    const auto & greeting = *static_cast<const rpc_msg_hello_rsp *>(answer);
    return {greeting.major, greeting.minor, greeting.patch};
}

// ---- devices

namespace {

// A graph on a server that is lost fails. ggml's function only queues the graph and never fails.
ggml_status compute_or_fail(ggml_backend_t backend, ggml_cgraph * graph) {
    const std::string endpoint = endpoint_of(backend->device);
    if (!loss_of(endpoint.substr(0, endpoint.find('#'))).empty()) {
        return GGML_STATUS_FAILED;
    }
    return ggml_backend_rpc_graph_compute(backend, graph);
}

ggml_backend_t device_init(ggml_backend_dev_t dev, const char * params) {
    ggml_backend_t backend = ggml_backend_rpc_device_init(dev, params);
    if (backend != nullptr) {
        backend->iface.graph_compute = compute_or_fail;
    }
    return backend;
}

// With events, llama.cpp would keep four copies of every graph's inputs, to read a prompt in a pipeline.
void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    ggml_backend_rpc_device_get_props(dev, props);
    props->caps.events = false;
}

} // namespace

RpcConnection connect_rpc(const std::string & endpoint) {
    RpcConnection connection;
    connection.keeper            = get_dispatcher(endpoint);
    const ggml_backend_reg_t reg = ggml_backend_rpc_add_server(endpoint.c_str());
    const size_t             n   = reg == nullptr ? 0 : ggml_backend_reg_dev_count(reg);
    for (size_t i = 0; i < n; ++i) {
        ggml_backend_dev_t device  = ggml_backend_reg_dev_get(reg, i);
        device->iface.init_backend = device_init;
        device->iface.get_props    = device_props;
        connection.devices.push_back(device);
    }
    return connection;
}

std::string endpoint_of(ggml_backend_dev_t device) {
    const bool is_remote = device->iface.get_name == ggml_backend_rpc_device_get_name;
    return is_remote ? static_cast<const ggml_backend_rpc_device_context *>(device->context)->endpoint : "";
}

// ---- the server

void serve_rpc_client(std::vector<ggml_backend_t> devices, const char * cache, int fd) {
    rpc_serve_client(devices, cache, socket_t::create_server(nullptr, fd));
}

} // namespace spac
