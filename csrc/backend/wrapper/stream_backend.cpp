#include "backend/wrapper/device.h"

#include "backend/device/ggml_internals.h"
#include "backend/experts/experts.h"
#include "backend/split/split_stream.h"
#include "core/error.h"

#include <memory>

namespace spac {
namespace {

SplitStream &  stream_of(ggml_backend_t backend) { return *static_cast<SplitStream *>(backend->context); }
ggml_backend_t inner_of(ggml_backend_t backend) { return stream_of(backend).inner(); }

const char * backend_name(ggml_backend_t) { return "SPAC"; }

void backend_free(ggml_backend_t backend) {
    if (!stream_of(backend).hangs()) { // if it hangs, it is leaked: the device and the helper may still use it
        delete static_cast<SplitStream *>(backend->context);
    }
    delete backend;
}

bool is_spac(ggml_backend_t backend) { return backend->iface.get_name == backend_name; }

void backend_set_async(ggml_backend_t b, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    ggml_backend_tensor_set_async(inner_of(b), t, data, offset, size);
}
void backend_get_async(ggml_backend_t b, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    ggml_backend_tensor_get_async(inner_of(b), t, data, offset, size);
}
bool backend_cpy_async(ggml_backend_t from, ggml_backend_t to, const ggml_tensor * src, ggml_tensor * dst) {
    ggml_backend_t inner = inner_of(to);
    return inner->iface.cpy_tensor_async != nullptr &&
           inner->iface.cpy_tensor_async(is_spac(from) ? inner_of(from) : from, inner, src, dst);
}
void backend_synchronize(ggml_backend_t b) { stream_of(b).synchronize(); }

ggml_status backend_compute(ggml_backend_t b, ggml_cgraph * graph) {
    // no exception may cross llama.cpp's C interface: the caller gets a status, and the user a line in the log
    try {
        return stream_of(b).compute(graph);
    } catch (const MemoryError & error) {
        GGML_LOG_ERROR("spac: %s\n", error.what());
        return GGML_STATUS_ALLOC_FAILED;
    } catch (const std::exception & error) {
        GGML_LOG_ERROR("spac: %s\n", error.what());
        return GGML_STATUS_FAILED;
    }
}

void backend_event_record(ggml_backend_t b, ggml_backend_event_t event) {
    ggml_backend_event_record(event, inner_of(b));
}
void backend_event_wait(ggml_backend_t b, ggml_backend_event_t event) { ggml_backend_event_wait(inner_of(b), event); }

// Calls the inner device's graph_optimize before memory is found for a graph. CUDA names tensors that have to be kept
// apart, without which its fused kernels (the router's, a token's weighted sum) refuse to run. It may also reorder the
// nodes of a graph, but not of one from which blocks are cut.
void optimize_inner(ggml_backend_t inner, ggml_cgraph * graph, ggml_backend_graph_optimize_params * params,
                    bool has_blocks) {
    static const bool cuda_reorders = getenv("GGML_CUDA_GRAPH_OPT") != nullptr; // then it expects that order later
    if (inner->iface.graph_optimize == nullptr || (has_blocks && cuda_reorders)) {
        return;
    }
    std::vector<ggml_tensor *> nodes(graph->nodes, graph->nodes + graph->n_nodes);
    ggml_cgraph                copy = *graph;
    copy.nodes                      = has_blocks ? nodes.data() : graph->nodes;
    inner->iface.graph_optimize(inner, &copy, params);
}

// Prepares for a graph that will come. llama.cpp plans its largest graphs while it makes a context, before it computes.
void backend_optimize(ggml_backend_t b, ggml_cgraph * graph, ggml_backend_graph_optimize_params * params) {
    try {
        const bool has_blocks = stream_of(b).plan(graph);
        optimize_inner(inner_of(b), graph, params, has_blocks);
    } catch (const std::exception & error) {
        GGML_LOG_ERROR("spac: %s\n", error.what());
        if (AbortGuard::here()) {
            throw; // making the context fails; without a guard, the graph fails when it is computed
        }
    }
}

ggml_backend_i backend_iface(ggml_backend_t inner) {
    ggml_backend_i iface   = {};
    iface.get_name         = backend_name;
    iface.free             = backend_free;
    iface.set_tensor_async = backend_set_async;
    iface.get_tensor_async = backend_get_async;
    iface.cpy_tensor_async = backend_cpy_async;
    iface.synchronize      = backend_synchronize;
    iface.graph_compute    = backend_compute;
    iface.event_record     = inner->iface.event_record ? backend_event_record : nullptr;
    iface.event_wait       = inner->iface.event_wait ? backend_event_wait : nullptr;
    iface.graph_optimize   = backend_optimize;
    return iface;
}

ggml_guid_t backend_guid() {
    static ggml_guid guid = {0x73, 0x70, 0x61, 0x63, 0x2d, 0x62, 0x61, 0x63,
                             0x6b, 0x65, 0x6e, 0x64, 0x2d, 0x30, 0x30, 0x31};
    return &guid;
}

} // namespace

ggml_backend_t new_stream_backend(ggml_backend_dev_t dev, ggml_backend_dev_t inner) {
    try {
        auto stream = std::make_unique<SplitStream>(inner);
        auto iface  = backend_iface(stream->inner());
        return new ggml_backend{backend_guid(), iface, dev, stream.release()};
    } catch (const std::exception & error) {
        GGML_LOG_ERROR("spac: %s\n", error.what());
        return nullptr;
    }
}

void stream_backend_set_n_threads(ggml_backend_t backend, int n_threads) {
    stream_of(backend).set_n_threads(n_threads);
}

void stream_backend_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void * data) {
    stream_of(backend).set_abort(callback, data);
}

} // namespace spac
