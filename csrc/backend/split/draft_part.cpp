#include "backend/split/draft_part.h"

#include "backend/graph/nodes.h"
#include "core/error.h"

namespace spac {

bool prepare_draft(SplitBlock & b, const std::shared_ptr<const DraftCopies> & copies, bool can_replace) {
    if (b.draft_copies.lock() == copies) {
        return true;
    }
    if (b.draft_ctx != nullptr && !can_replace) {
        return false;
    }
    NodeMap map;
    for (const ggml_tensor * weight : b.block.weights) {
        ggml_tensor * const copy = copies->of(weight);
        if (copy == nullptr) {
            throw DeviceError(std::string(weight->name) + " has no low-bit copy: this model cannot draft for itself " +
                              "with adapters on its experts");
        }
        map[weight] = copy;
    }
    const size_t n_tensors = b.block.chain.size() + 1;
    b.draft_ctx.reset(
        ggml_init({n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false), nullptr, true}));
    b.draft_nodes = {};
    for (const ggml_tensor * node : b.block.chain) {
        b.draft_nodes.nodes.push_back(copy_node(b.draft_ctx.get(), node, map));
    }
    b.draft_nodes.uses = count_uses(b.draft_ctx.get(), b.draft_nodes.nodes);
    b.draft_nodes.fix();
    b.draft_copies = copies;
    return true;
}

} // namespace spac
