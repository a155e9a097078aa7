#include "backend/graph/graph_image.h"

#include <cstring>
#include <unordered_set>

namespace spac {

GraphImage::GraphImage(const ggml_cgraph * graph) : n_nodes_(graph->n_nodes) {
    std::unordered_set<const ggml_tensor *> known;
    known.reserve(static_cast<size_t>(n_nodes_) * 2);
    for (int i = 0; i < n_nodes_; ++i) {
        known.insert(graph->nodes[i]);
        add(graph->nodes[i]);
    }
    for (int i = 0; i < n_nodes_; ++i) {
        for (const ggml_tensor * src : graph->nodes[i]->src) {
            if (src != nullptr && known.insert(src).second) {
                add(src);
            }
        }
    }
}

void GraphImage::add(const ggml_tensor * t) {
    places_.push_back(t);
    tensors_.push_back(*t);
}

bool GraphImage::matches(const ggml_cgraph * graph) const {
    if (graph->n_nodes != n_nodes_) {
        return false;
    }
    for (size_t i = 0; i < places_.size(); ++i) {
        // the tensors behind the nodes in places_ exist, because unchanged nodes read them
        if ((i < static_cast<size_t>(n_nodes_) && graph->nodes[i] != places_[i]) ||
            std::memcmp(places_[i], &tensors_[i], sizeof(ggml_tensor)) != 0) {
            return false;
        }
    }
    return true;
}

} // namespace spac
