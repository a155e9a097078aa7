// The tap of a context that runs on the CPU: llama.cpp's evaluation callback.
//
// llama.cpp asks at each node whether it is wanted, and computes up to a wanted one. The first product of a layer's FFN
// is wanted. Its matrix has the layer's number in its name, and its other operand is the state.
#include "backend/hidden_states/stream_tap.h"

#include <cstdio>
#include <cstring>

namespace spac {
namespace {

// Returns the layer of a node that multiplies one token's state with a matrix of an FFN, and -1 for other nodes.
int ffn_of(const ggml_tensor * node) {
    if (node->op != GGML_OP_MUL_MAT || node->src[1]->type != GGML_TYPE_F32 || ggml_nrows(node->src[1]) != 1) {
        return -1;
    }
    int  layer     = -1;
    char matrix[9] = {};
    if (std::sscanf(node->src[0]->name, "blk.%d.%8s", &layer, matrix) != 2) {
        return -1;
    }
    return std::strcmp(matrix, "ffn_gate") == 0 || std::strncmp(matrix, "ffn_up", 6) == 0 ? layer : -1;
}

constexpr size_t n_lanes = 8; // sums that are independent, so that the compiler uses vectors

float dot(const float * a, const float * b, size_t n) {
    float sums[n_lanes] = {};
    for (size_t i = 0; i + n_lanes <= n; i += n_lanes) {
        for (size_t lane = 0; lane < n_lanes; ++lane) {
            sums[lane] += a[i + lane] * b[i + lane];
        }
    }
    float sum = 0;
    for (size_t i = n / n_lanes * n_lanes; i < n; ++i) {
        sum += a[i] * b[i];
    }
    for (const float each : sums) {
        sum += each;
    }
    return sum;
}

} // namespace

std::pair<uintptr_t, uintptr_t> StreamTap::callback() {
    return {reinterpret_cast<uintptr_t>(&StreamTap::evaluate), reinterpret_cast<uintptr_t>(this)};
}

// Copies the routers' matrices, which may be on a device.
void StreamTap::load(const std::vector<Predictions::Row> & rows) {
    host_next_ = rows.size();
    for (size_t i = host_rows_.size(); i < rows.size(); ++i) {
        HostRow row;
        row.weight = matrix_of(*rows[i].router);
        host_rows_.push_back(std::move(row));
    }
}

bool StreamTap::evaluate(ggml_tensor * node, bool ask, void * tap) {
    auto & self = *static_cast<StreamTap *>(tap);
    return ask ? self.asks_at(node) : self.show(node->src[1]);
}

// Returns true if the next row's layer, or the first one's, gets its state here.
bool StreamTap::asks_at(const ggml_tensor * node) {
    const auto & rows = predictions_.rows();
    if (rows.empty() || on_device()) {
        return false;
    }
    const int layer = ffn_of(node);
    for (const size_t i : {host_next_ % rows.size(), size_t{0}}) {
        HostRow & row = host_rows_[i];
        row.at        = row.at == nullptr && layer == rows[i].question.input ? node->src[0] : row.at;
        if (layer >= 0 && row.at == node->src[0]) {
            host_next_ = i;
            return true;
        }
    }
    return false;
}

// Multiplies the router of the next row with a state. Returns true, which lets llama.cpp go on.
bool StreamTap::show(const ggml_tensor * input) {
    const auto & row    = predictions_.rows()[host_next_];
    const auto & weight = host_rows_[host_next_].weight;
    if (host_next_ == 0) {
        predictions_.end(false);
        predictions_.begin();
    }
    std::vector<float> state(static_cast<size_t>(input->ne[0]));
    if (state.size() * static_cast<size_t>(row.n_expert) == weight.size()) {
        ggml_backend_tensor_get(input, state.data(), 0, ggml_nbytes(input));
        for (int e = 0; e < row.n_expert; ++e) {
            const float product =
                dot(weight.data() + static_cast<size_t>(e) * state.size(), state.data(), state.size());
            __atomic_store(row.products + e, &product, __ATOMIC_RELEASE);
        }
    }
    ++host_next_;
    return true;
}

} // namespace spac
