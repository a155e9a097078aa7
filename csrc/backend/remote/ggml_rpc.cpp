// ggml's RPC code is compiled into this file, because the sizes of its messages, its devices and its server's loop are
// known to that file alone.

#include "backend/remote/rpc_socket.h"
#include "core/error.h"
#include "ggml-rpc/ggml-rpc.cpp"

namespace spac {

// ---- messages

RpcVersion rpc_version() { return {RPC_PROTO_MAJOR_VERSION, RPC_PROTO_MINOR_VERSION, RPC_PROTO_PATCH_VERSION}; }

bool is_greeting(uint8_t command) { return command == RPC_CMD_HELLO; }

size_t greeting_size() { return sizeof(rpc_msg_hello_rsp); }

// The offer's byte has this in its upper half, and the number of stores in the lower one.
constexpr uint8_t offer_mark = 0xB0;

static_assert(split_command >= RPC_CMD_COUNT, "ggml has a command of the same number");

void write_stores(void * answer, int n_stores) {
    const int known                                   = std::min(n_stores, most_stores);
    static_cast<rpc_msg_hello_rsp *>(answer)->padding = static_cast<uint8_t>(known > 0 ? offer_mark + known : 0);
}

int stores_in(const void * answer) {
    const int offer = static_cast<const rpc_msg_hello_rsp *>(answer)->padding;
    return offer > offer_mark ? std::min(offer - offer_mark, most_stores) : 0;
}

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

// A remote device that splits, as ggml's client sees it.
struct SplitContext : ggml_backend_rpc_device_context {
    uint32_t store; // the number of the device that has its store
};

// Returns true for the type of the buffers in a device's store.
bool is_its_store(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) {
    if (type == nullptr || type->iface.get_name != ggml_backend_rpc_buffer_type_name) {
        return false;
    }
    const auto & at  = *static_cast<const ggml_backend_rpc_buffer_type_context *>(type->context);
    const auto & own = *static_cast<const SplitContext *>(dev->context);
    return at.device == own.store && at.endpoint == own.endpoint;
}

bool is_in_its_store(ggml_backend_dev_t dev, const ggml_tensor * t) {
    const ggml_tensor * root = t != nullptr && t->view_src != nullptr ? t->view_src : t;
    return root != nullptr && root->buffer != nullptr && is_its_store(dev, root->buffer->buft);
}

bool split_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type) {
    return is_its_store(dev, type) || ggml_backend_rpc_device_supports_buft(dev, type);
}

// Experts in the store are read through ids, as a SPAC device demands it.
bool split_supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) {
    const int place = op->op == GGML_OP_MUL_MAT_ID ? 0 : op->op == GGML_OP_ADD_ID ? 1 : -1;
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        if (i != place && is_in_its_store(dev, op->src[i])) {
            return false;
        }
    }
    return ggml_backend_rpc_device_supports_op(dev, op);
}

bool store_supports_op(ggml_backend_dev_t, const ggml_tensor *) { return false; }

void make_split(ggml_backend_dev_t dev, uint32_t store) {
    auto * old               = static_cast<ggml_backend_rpc_device_context *>(dev->context);
    dev->context             = new SplitContext{*old, store}; // it lives as long as the device: for ever
    dev->iface.supports_buft = split_supports_buft;
    dev->iface.supports_op   = split_supports_op;
    delete old;
}

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
    const auto n_stores = static_cast<size_t>(stores_of(endpoint.substr(0, endpoint.find('#'))));
    if (n_stores > 0 && n >= 2 * n_stores) {
        connection.devices.resize(n - n_stores);
        for (size_t i = 0; i < n_stores; ++i) {
            ggml_backend_dev_t store = ggml_backend_reg_dev_get(reg, n - n_stores + i);
            store->iface.supports_op = store_supports_op;
            make_split(connection.devices[i], static_cast<uint32_t>(n - n_stores + i));
            connection.stores.push_back(store);
        }
    }
    return connection;
}

std::string endpoint_of(ggml_backend_dev_t device) {
    const bool is_remote = device->iface.get_name == ggml_backend_rpc_device_get_name;
    return is_remote ? static_cast<const ggml_backend_rpc_device_context *>(device->context)->endpoint : "";
}

// ---- the server

void serve_rpc_client(const Lending & lent, const char * cache, int fd) {
    std::vector<ggml_backend_t> all = lent.devices;
    all.insert(all.end(), lent.stores.begin(), lent.stores.end());
    // ggml's server copies the list at first, and tells each client its length later
    std::vector<ggml_backend_t> seen = all;
    SplitOffer                  offer;
    offer.n_stores = static_cast<int>(lent.stores.size());
    offer.greeted  = [&] { seen = lent.devices; };
    offer.taken    = [&] {
        seen = all;
        lent.split();
    };
    set_offer(&offer);
    rpc_serve_client(seen, cache, socket_t::create_server(nullptr, fd));
}

} // namespace spac
