#include "backend/split/block_parts.h"

#include "backend/device/device.h"
#include "backend/device/settings.h"
#include "backend/graph/split_graph.h"
#include "core/error.h"

#include <algorithm>

namespace spac {
namespace {

// Masked form: adds the lookup that turns ids into slots on the device, by the layer's row of masks. The result is -1
// for experts without a slot.
void add_slot_lookup(ggml_context * ctx, SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch,
                     const ggml_tensor * row, NodeMap & map) {
    const Block & block = b.block;
    ggml_tensor * table = table_leaf(ctx, GGML_TYPE_I32, row->ne[1], block.n_tokens(), row->data, row->buffer);
    b.slot_lookup       = lookup(ctx, table, block.ids, s.device_ids, scratch);
    b.device_nodes.nodes.push_back(b.slot_lookup);
    map[block.ids] = leaf(ctx, GGML_TYPE_I32, {block.n_used(), block.n_tokens()}, s.device_ids, scratch);
}

// Compact form: adds the lookup of the listed pairs' rows of input. Each pair has one id.
void add_compact_gather(ggml_context * ctx, SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch,
                        NodeMap & map) {
    const Block & block = b.block;
    const auto    pairs = static_cast<int64_t>(block.n_pairs()), width = block.input->ne[0];
    const int64_t rows  = block.input->ne[1] * block.input->ne[2];
    ggml_tensor * input = leaf(ctx, GGML_TYPE_F32, {width, rows}, block.input->data, block.input->buffer);
    ggml_tensor * from  = leaf(ctx, GGML_TYPE_I32, {pairs}, s.compact_index, scratch);
    b.compact_gather    = lookup(ctx, input, from, s.compact_input, scratch);
    b.device_nodes.nodes.push_back(b.compact_gather);
    b.compact_ids    = leaf(ctx, GGML_TYPE_I32, {1, pairs}, s.device_ids, scratch);
    map[block.ids]   = b.compact_ids;
    map[block.input] = leaf(ctx, GGML_TYPE_F32, {width, 1, pairs}, s.compact_input, scratch);
}

// Compact form: makes the chain's last node write separate rows, and adds the node that puts them at their places `to`
// in the block's output.
void add_compact_scatter(ggml_context * ctx, SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch,
                         ggml_tensor * to) {
    const ggml_tensor * out       = b.block.out;
    const auto          pairs     = static_cast<int64_t>(b.block.n_pairs());
    b.device_chain.back()->data   = s.compact_output;
    b.device_chain.back()->buffer = scratch;
    ggml_tensor * flat            = leaf(ctx, GGML_TYPE_F32, {out->ne[0], pairs}, out->data, out->buffer);
    ggml_tensor * rows            = leaf(ctx, GGML_TYPE_F32, {out->ne[0], pairs}, s.compact_output, scratch);
    b.compact_scatter             = ggml_set_rows(ctx, flat, rows, to);
    b.compact_scatter->data       = flat->data;
    b.compact_scatter->buffer     = flat->buffer;
    b.compact_scatter->flags |= GGML_TENSOR_FLAG_COMPUTE;
}

// Compact form: sets the part's shapes to `n` (token, expert) pairs.
void set_compact_pairs(SplitBlock & b, int n) {
    const auto set_rows = [n](ggml_tensor * t, int dim) {
        t->ne[dim] = n;
        for (int d = dim + 1; d < GGML_MAX_DIMS; ++d) {
            t->nb[d] = t->nb[d - 1] * t->ne[d - 1];
        }
    };
    set_rows(b.compact_gather->src[1], 0);
    set_rows(b.compact_gather, 1);
    set_rows(b.compact_ids, 1);
    for (size_t i = 0; i < b.compact_scales.size(); i += 2) {
        set_rows(b.compact_scales[i], 1);
        set_rows(b.compact_scales[i + 1], 2);
    }
    for (ggml_tensor * copy : b.device_chain) {
        // rows [width, n_used, n_tokens] become [width, 1, n]
        copy->ne[1] = 1;
        copy->ne[2] = n;
        copy->ne[3] = 1;
        copy->nb[1] = copy->view_src ? copy->view_src->nb[1] : ggml_row_size(copy->type, copy->ne[0]);
        copy->nb[2] = copy->nb[1];
        copy->nb[3] = copy->nb[2] * n;
        if (copy->op == GGML_OP_MUL_MAT_ID && copy->src[1]->data == b.compact_gather->data &&
            copy->src[1]->buffer ==
                b.compact_gather
                    ->buffer) { // addresses may count from the buffer's begin, so they alone do not identify memory
            set_rows(copy->src[1], 2);
        }
    }
    set_rows(b.compact_scatter->src[0], 1);
    set_rows(b.compact_scatter->src[1], 0);
}

} // namespace

DevicePart::DevicePart(ComputeStream & stream)
    : stream_(stream), masked_(trust_device_masks().value_or(stream.capabilities().masked_kernels)) {}

void DevicePart::prepare(SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch,
                         const ModelExperts::Snapshot & now) {
    const Block &     block   = b.block;
    const MaskTable * masks   = masked() ? masks_of(*b.experts) : nullptr;
    const bool        no_room = masked() && masks == nullptr;
    b.storage                 = now.storage;
    b.storage_generation      = now.generation;
    b.slot_lookup             = nullptr;
    b.compact_scatter         = nullptr;
    b.device_nodes            = {};
    b.device_chain.clear();
    b.compact_scales.clear();
    const size_t n_tensors = block.chain.size() + 6 * block.scales.size() + 12;
    b.device_ctx.reset(
        ggml_init({n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false), nullptr, true}));
    ggml_context * ctx  = b.device_ctx.get();
    const int      pool = b.experts->pool_of(b.layer);

    NodeMap map;
    for (size_t w = 0; w < block.weights.size(); ++w) {
        map[block.weights[w]] = now.storage->tensor(pool, static_cast<int>(w));
    }
    b.device_can =
        !no_room && std::all_of(map.begin(), map.end(), [](auto & entry) { return entry.second != nullptr; });
    if (!b.device_can) {
        return;
    }
    ggml_tensor * to = nullptr; // the pairs' rows of the output
    if (masks != nullptr) {
        add_slot_lookup(ctx, b, s, scratch, masks->rows[b.layer], map);
    } else {
        const auto pairs = static_cast<int64_t>(block.n_pairs());
        add_compact_gather(ctx, b, s, scratch, map);
        to = leaf(ctx, GGML_TYPE_I32, {pairs}, s.compact_index + pairs * sizeof(int32_t), scratch);
    }
    add_device_scales(ctx, b, s, scratch, to, map, b.device_nodes.nodes);
    for (const ggml_tensor * node : block.chain) {
        b.device_chain.push_back(copy_node(ctx, node, map));
        b.device_nodes.nodes.push_back(b.device_chain.back());
    }
    if (to != nullptr) {
        add_compact_scatter(ctx, b, s, scratch, to);
    }
    const auto supported = [&](const ggml_tensor * node) { return ggml_backend_supports_op(stream_.backend(), node); };
    b.device_can         = supported(to == nullptr ? b.join : b.compact_scatter) &&
                   std::all_of(b.device_nodes.nodes.begin(), b.device_nodes.nodes.end(), supported);
    if (!b.device_can) {
        b.experts->note_unsplit(block.weights.front()->name, ModelExperts::Unsplit::kernels);
    }
    b.device_nodes.uses = count_uses(ctx, b.device_nodes.nodes);
    if (to == nullptr) {
        b.device_nodes.fix();
    } // compact shapes change with the number of pairs
}

ggml_status DevicePart::launch(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                               const ggml_cgraph * graph) {
    stream_.hold(mask);
    stream_.hold(b.storage.lock());
    if (b.slot_lookup != nullptr) {
        refresh_mask(b, mask);
    } else {
        b.compact_pairs = send_pairs(b, s, *mask);
        if (b.compact_pairs == 0) {
            return GGML_STATUS_SUCCESS;
        }
    }
    stream_.record_device_part(b);
    return stream_.launch(b, b.device_nodes, graph);
}

ggml_status DevicePart::launch(SplitBlock & b, const LateMask & late, const ggml_cgraph * graph) {
    stream_.hold(b.storage.lock());
    send_row(b, late.row, 0); // the version is not known yet
    stream_.record_device_part(b);
    return stream_.launch(b, b.device_nodes, graph);
}

ggml_status DevicePart::scatter(const SplitBlock & b, const ggml_cgraph * graph) {
    return b.compact_pairs > 0 ? stream_.launch(b, {b.compact_scatter}, graph) : GGML_STATUS_SUCCESS;
}

// Returns a model's masks on the device, or null if the device has no memory for them. Then the host computes all
// blocks.
DevicePart::MaskTable * DevicePart::masks_of(ModelExperts & experts) {
    auto & [holder, table] = mask_tables_[&experts];
    if (!holder) {
        holder            = experts.shared_from_this();
        const int n_layer = experts.n_layer(), n_expert = experts.n_expert();
        table.ctx.reset(ggml_init({(n_layer + 1) * ggml_tensor_overhead(), nullptr, true}));
        for (int il = 0; il < n_layer; ++il) {
            table.rows.push_back(ggml_new_tensor_2d(table.ctx.get(), GGML_TYPE_I32, 1, n_expert));
        }
        table.versions.assign(n_layer, 0);
        table.n_sent.assign(n_layer, 0);
        table.left.assign(size_t{2} * n_layer, 0);
        table.width   = static_cast<size_t>(n_expert);
        table.staging = stream_.host_buffer(table.left.size() * table.width * sizeof(int32_t));
        table.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(table.ctx.get(), stream_.buffer_type()));
        if (!table.buffer || !table.staging) {
            table.buffer.reset();
            GGML_LOG_WARN("spac: %s has no room for the ids masks: all experts run on the CPU\n",
                          ggml_backend_dev_name(stream_.device()));
        }
    }
    return table.buffer ? &table : nullptr;
}

void DevicePart::refresh_mask(const SplitBlock & b, const std::shared_ptr<const Mask> & mask) {
    if (masks_of(*b.experts)->versions[b.layer] != mask->version) {
        int32_t * row = reserve_row(b);
        write_row({nullptr, row, 0}, mask.get());
        send_row(b, row, mask->version);
    }
}

int32_t * DevicePart::reserve_row(const SplitBlock & b) {
    MaskTable & table = *masks_of(*b.experts);
    // a copy from pageable memory would make this thread wait for all that is queued
    const size_t place = 2 * static_cast<size_t>(b.layer) + table.n_sent[b.layer]++ % 2;
    if (!stream_.has_passed(table.left[place])) {
        stream_.synchronize();
    }
    table.left[place] = stream_.next_mark();
    return static_cast<int32_t *>(ggml_backend_buffer_get_base(table.staging.get())) + place * table.width;
}

void DevicePart::write_row(const LateMask & late, const Mask * mask) {
    if (mask == nullptr) {
        std::fill_n(late.row, late.b->n_expert, -1);
    } else {
        std::copy(mask->slot_of.begin(), mask->slot_of.end(), late.row);
    }
}

// Queues a row on the compute stream, so that launches before it read the older version.
void DevicePart::send_row(const SplitBlock & b, const int32_t * row, uint64_t version) {
    MaskTable & table = *masks_of(*b.experts);
    stream_.send(b, table.rows[b.layer], row, sizeof(int32_t) * b.n_expert);
    table.versions[b.layer] = version;
}

// Lists the device's (token, expert) pairs for the compact form, queues the lists, and returns the number of pairs.
int DevicePart::send_pairs(SplitBlock & b, const Staging & s, const Mask & mask) {
    const int  n_used = b.block.n_used(), n_tokens = b.block.n_tokens();
    const auto all   = static_cast<size_t>(n_used) * n_tokens;
    int32_t *  from  = s.index;
    int32_t *  to    = from + all;
    int32_t *  slots = to + all;
    int        n     = 0;
    for (int t = 0; t < n_tokens; ++t) {
        const int32_t * ids = s.ids_of(b.block, t);
        for (int u = 0; u < n_used; ++u) {
            if (mask.slot_of[ids[u]] >= 0) {
                from[n]  = b.block.input->ne[1] == 1 ? t : t * n_used + u;
                to[n]    = t * n_used + u;
                slots[n] = mask.slot_of[ids[u]];
                ++n;
            }
        }
    }
    if (n > 0) {
        set_compact_pairs(b, n);
        const size_t bytes = n * sizeof(int32_t);
        stream_.send(b, b.compact_gather->src[1], from, bytes);
        stream_.send(b, b.compact_scatter->src[1], to, bytes);
        stream_.send(b, b.compact_ids, slots, bytes);
    }
    return n;
}

} // namespace spac
