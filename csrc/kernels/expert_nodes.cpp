#include "kernels/expert_nodes.h"

#include "ggml-impl.h"

#include <algorithm>
#include <array>

namespace spac::kernels {
namespace {

// Finds the nodes of a layer.
class Finder {
  public:
    explicit Finder(const ggml_cgraph * graph) : graph_(graph) {}

    // Returns true if the layer begins with this node.
    bool find(int first, Layer & layer) {
        at_ = first;
        std::array<const ggml_tensor *, 4> before{};
        size_t                             n = 0;
        while ((layer.glu = take()) != nullptr && layer.glu->op != GGML_OP_GLU) {
            if (n == before.size()) {
                return false;
            }
            before[n++] = layer.glu;
        }
        if (layer.glu == nullptr || !halves(layer)) {
            return false;
        }
        const std::array<const ggml_tensor *, 4> wanted = {layer.gate.product, layer.gate.biased, layer.up.product,
                                                           layer.up.biased};
        const auto                               end    = before.begin() + n;
        return std::all_of(wanted.begin(), wanted.end(),
                           [&](auto * t) { return t == nullptr || std::find(before.begin(), end, t) != end; }) &&
               std::all_of(before.begin(), end,
                           [&](auto * t) { return std::find(wanted.begin(), wanted.end(), t) != wanted.end(); }) &&
               find_down(layer);
    }

  private:
    // Returns the next node that computes, or null at the graph's end.
    const ggml_tensor * take() {
        while (at_ < graph_->n_nodes && ggml_op_is_empty(graph_->nodes[at_]->op)) {
            at_++;
        }
        const ggml_tensor * node = at_ < graph_->n_nodes ? graph_->nodes[at_] : nullptr;
        at_++;
        return node != nullptr && (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0 ? node : nullptr;
    }

    // Returns true if nodes outside of the layer may read this one, which is left out of the computation.
    bool is_read(const ggml_tensor * node, int by_the_layer) const {
        const size_t place = ggml_hash_find(&graph_->visited_hash_set, node);
        const bool   known = ggml_bitset_get(graph_->visited_hash_set.used, place);
        return (node->flags & GGML_TENSOR_FLAG_OUTPUT) != 0 || (known && graph_->use_counts[place] != by_the_layer);
    }

    // Finds the product whose rows a source of the activation holds.
    bool trace(const ggml_tensor * source, Product & side) const {
        if (source->op == GGML_OP_VIEW) {
            const ggml_tensor * whole = source->view_src;
            if (source->type != GGML_TYPE_F32 || source->view_offs % sizeof(float) != 0 ||
                source->ne[1] != whole->ne[1] || source->ne[2] != whole->ne[2] || source->nb[1] != whole->nb[1] ||
                source->nb[2] != whole->nb[2]) {
                return false;
            }
            side.first = static_cast<int64_t>(source->view_offs / sizeof(float));
            source     = whole;
        }
        if (source->op == GGML_OP_ADD_ID) {
            side.biased = source;
            source      = source->src[0];
        }
        side.product = source;
        return source->op == GGML_OP_MUL_MAT_ID && (side.biased == nullptr || !is_read(source, 1));
    }

    bool halves(Layer & layer) const {
        const ggml_tensor * glu = layer.glu;
        if (!trace(glu->src[0], layer.gate)) {
            return false;
        }
        if (glu->src[1] != nullptr) {
            return trace(glu->src[1], layer.up);
        }
        const bool swapped = ggml_get_op_params_i32(glu, 1) != 0;
        layer.up           = layer.gate;
        (swapped ? layer.gate : layer.up).first += glu->ne[0];
        return true;
    }

    bool find_down(Layer & layer) {
        Product & down = layer.down;
        down.product   = take();
        if (down.product == nullptr || down.product->op != GGML_OP_MUL_MAT_ID || down.inputs() != layer.glu ||
            down.ids() != layer.gate.ids()) {
            return false;
        }
        layer.last               = at_ - 1;
        const ggml_tensor * next = take();
        if (next != nullptr && next->op == GGML_OP_ADD_ID && next->src[0] == down.product &&
            !is_read(down.product, 1)) {
            down.biased = next;
            layer.last  = at_ - 1;
        }
        at_ = layer.last + 1;
        find_sum(layer);
        return true;
    }

    // Finds the weighted sum, if it follows.
    void find_sum(Layer & layer) {
        const ggml_tensor * rows = layer.down.out();
        const ggml_tensor * mul  = take();
        if (mul == nullptr || mul->op != GGML_OP_MUL || mul->src[0] != rows || is_read(rows, 1) ||
            is_read(mul, static_cast<int>(layer.n_used())) || layer.n_used() < 2 || !has_rows(mul, layer.down.ids())) {
            return;
        }
        const ggml_tensor * weights = mul->src[1];
        if (weights->type != GGML_TYPE_F32 || weights->ne[0] != 1 || weights->ne[1] != layer.n_used() ||
            weights->ne[2] != layer.n_tokens()) {
            return;
        }
        const ggml_tensor * sum = nullptr;
        for (int64_t i = 1; i < layer.n_used(); i++) {
            const ggml_tensor * add = take();
            if (add == nullptr || add->op != GGML_OP_ADD || !is_view(add->src[1], mul, i) || is_read(add->src[1], 1) ||
                (i == 1 ? !is_view(add->src[0], mul, 0) || is_read(add->src[0], 1)
                        : add->src[0] != sum || is_read(sum, 1))) {
                return;
            }
            sum = add;
        }
        if (sum->nb[0] == sizeof(float) && sum->ne[0] == mul->ne[0] && sum->ne[1] == layer.n_tokens() &&
            !overlap(sum, rows) && !overlap(sum, weights)) {
            layer.mul  = mul;
            layer.sum  = sum;
            layer.last = at_ - 1;
        }
    }

    // Returns true if the tensor holds the rows of place i among all tokens' experts.
    static bool is_view(const ggml_tensor * view, const ggml_tensor * mul, int64_t i) {
        return view->op == GGML_OP_VIEW && view->view_src == mul &&
               view->view_offs == static_cast<size_t>(i) * mul->nb[1] && view->ne[0] == mul->ne[0] &&
               view->ne[1] == mul->ne[2] && view->nb[1] == mul->nb[2] && view->ne[2] == 1 && view->ne[3] == 1;
    }

    const ggml_cgraph * graph_;
    int                 at_ = 0;
};

} // namespace

bool overlap(const ggml_tensor * a, const ggml_tensor * b) {
    const auto begin = [](const ggml_tensor * t) { return static_cast<const char *>(t->data); };
    return begin(a) < begin(b) + ggml_nbytes(b) && begin(b) < begin(a) + ggml_nbytes(a);
}

bool has_rows(const ggml_tensor * t, const ggml_tensor * ids) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && t->ne[1] == ids->ne[0] && t->ne[2] == ids->ne[1] &&
           t->ne[3] == 1;
}

bool find_layer(const ggml_cgraph * graph, int first, Layer & layer) { return Finder(graph).find(first, layer); }

} // namespace spac::kernels
