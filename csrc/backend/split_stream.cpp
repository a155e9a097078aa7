#include "backend/split_stream.h"

#include "backend/model_experts.h"
#include "backend/stand_in.h"
#include "backend/store.h"
#include "core/error.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace spac {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t ns_since(Clock::time_point start) {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

// Prepared graphs kept per stream: prompt and step shapes of a context, with room for several draft lengths.
constexpr size_t max_graphs = 16;

ggml_backend_buffer_type_t staging_type(ggml_backend_dev_t device) {
    ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device);
    return pinned != nullptr ? pinned : ggml_backend_cpu_buffer_type();
}

// Adds the time of a scope to a counter.
class Timer {
  public:
    explicit Timer(std::atomic<uint64_t> & total) : total_(total), start_(Clock::now()) {}
    ~Timer() { total_ += ns_since(start_); }
    Timer(const Timer &)             = delete;
    Timer & operator=(const Timer &) = delete;

  private:
    std::atomic<uint64_t> & total_;
    Clock::time_point       start_;
};

const int32_t * ids_of(const char * ids, size_t stride, int token) {
    return reinterpret_cast<const int32_t *>(ids + static_cast<size_t>(token) * stride);
}

} // namespace

SplitStream::SplitStream(ggml_backend_dev_t device)
    : inner_(ggml_backend_dev_init(device, nullptr)), cpu_(ggml_backend_cpu_init()) {
    if (!inner_ || !cpu_) {
        throw DeviceError(std::string("device ") + ggml_backend_dev_name(device) + " gave no stream");
    }
    event_.reset(ggml_backend_event_new(device));
    masked_ = is_stand_in(inner_.get()) || ggml_backend_is_cpu(inner_.get());
}

SplitStream::~SplitStream() {
    synchronize();
    if (pool_ != nullptr) {
        ggml_backend_cpu_set_threadpool(cpu_.get(), nullptr);
        ggml_threadpool_free(pool_);
    }
}

void SplitStream::set_n_threads(int n_threads) { n_threads_ = std::max(1, n_threads); }

void SplitStream::set_abort(ggml_abort_callback callback, void * data) {
    abort_      = callback;
    abort_data_ = data;
}

// A pool of our own: without one, ggml starts and ends its threads at every graph, and here a step has a graph per
// layer.
void SplitStream::make_pool() {
    if (n_threads_ > pool_size_) {
        if (pool_ != nullptr) {
            ggml_backend_cpu_set_threadpool(cpu_.get(), nullptr);
            ggml_threadpool_free(pool_);
        }
        ggml_threadpool_params params = ggml_threadpool_params_default(n_threads_);
        // waiting threads spin for some microseconds between layers; never where the stand-in needs the same cores
        params.poll = is_stand_in(inner_.get()) ? 0 : 1;
        pool_       = ggml_threadpool_new(&params);
        pool_size_  = n_threads_;
        ggml_backend_cpu_set_threadpool(cpu_.get(), pool_);
    }
    ggml_backend_cpu_set_n_threads(cpu_.get(), n_threads_);
}

void SplitStream::synchronize() {
    ggml_backend_synchronize(inner_.get());
    count_late();
    in_flight_.clear();
}

void SplitStream::discover(const ggml_cgraph * graph) {
    for (const Block & block : find_blocks(graph)) {
        if (block.splittable) {
            experts_of(block.weights.front())->find_or_add_layer(block.weights, block.n_used());
        }
    }
}

// ---- preparing

SplitGraph & SplitStream::graph_for(const ggml_cgraph * graph) {
    ++n_computed_;
    for (auto & g : graphs_) {
        if (graph->uid != 0 && g->uid == graph->uid && g->n_nodes == graph->n_nodes &&
            (graph->n_nodes == 0 || g->first == graph->nodes[0])) {
            g->used = n_computed_;
            return *g;
        }
    }
    std::vector<Block> blocks = find_blocks(graph);
    // the last layer of a prompt's piece whose logits nobody wants has no rows: its nodes are skipped by any device
    blocks.erase(std::remove_if(blocks.begin(), blocks.end(), [](const Block & b) { return b.n_tokens() == 0; }),
                 blocks.end());
    reserve(staging_size(blocks));
    const auto stale = [](auto & a, auto & b) { return a->used < b->used; };
    if (graphs_.size() >= max_graphs || graph->uid == 0) {
        synchronize(); // launches under way read the tensors of the graph that goes
    }
    // a graph without a uid cannot be recognized again
    graphs_.erase(std::remove_if(graphs_.begin(), graphs_.end(), [](auto & g) { return g->uid == 0; }), graphs_.end());
    if (graphs_.size() >= max_graphs) {
        graphs_.erase(std::min_element(graphs_.begin(), graphs_.end(), stale));
    }
    void * host = host_buffer_ ? ggml_backend_buffer_get_base(host_buffer_.get()) : nullptr;
    graphs_.push_back(prepare(graph, std::move(blocks), host, device_buffer_.get()));
    graphs_.back()->used = n_computed_;
    return *graphs_.back();
}

void SplitStream::reserve(const StagingSize & size) {
    if (size.host <= reserved_.host && size.device <= reserved_.device) {
        return;
    }
    synchronize();
    graphs_.clear(); // they point into what is replaced
    reserved_.host            = std::max(reserved_.host, size.host);
    reserved_.device          = std::max(reserved_.device, size.device);
    ggml_backend_dev_t device = ggml_backend_get_device(inner_.get());
    host_buffer_.reset();
    device_buffer_.reset();
    host_buffer_.reset(ggml_backend_buft_alloc_buffer(staging_type(device), reserved_.host));
    device_buffer_.reset(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), reserved_.device));
    if (!host_buffer_ || !device_buffer_) {
        reserved_ = {};
        throw MemoryError(std::string("device ") + ggml_backend_dev_name(device) + " has no room for " +
                          std::to_string(size.device >> 20) + " MiB of staging: use fewer slots or a smaller batch");
    }
    ggml_backend_buffer_set_usage(device_buffer_.get(), GGML_BACKEND_BUFFER_USAGE_COMPUTE);
}

SplitStream::MaskTable & SplitStream::masks_of(ModelExperts & experts) {
    auto & [holder, table] = mask_tables_[&experts];
    if (!holder) {
        holder            = experts.shared_from_this();
        const int n_layer = experts.n_layer(), n_expert = experts.n_expert();
        table.ctx.reset(ggml_init({(n_layer + 1) * ggml_tensor_overhead(), nullptr, true}));
        for (int il = 0; il < n_layer; ++il) {
            table.rows.push_back(ggml_new_tensor_2d(table.ctx.get(), GGML_TYPE_I32, 1, n_expert));
        }
        table.versions.assign(n_layer, 0);
        table.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(
            table.ctx.get(), ggml_backend_dev_buffer_type(ggml_backend_get_device(inner_.get()))));
        if (!table.buffer) {
            throw MemoryError("the device has no room for the ids masks");
        }
    }
    return table;
}

// ---- executing

ggml_status SplitStream::compute(ggml_cgraph * graph) {
    if (!late_.empty()) {
        synchronize();
    }
    SplitGraph & g = graph_for(graph);
    if (g.blocks.empty()) {
        return inner_->iface.graph_compute(inner_.get(), graph);
    }
    const Timer timer(g.blocks.front()->experts->counters.graph_ns);
    make_pool();
    bool counted = false;
    for (size_t k = 0; k < g.blocks.size(); ++k) {
        if (abort_ != nullptr && abort_(abort_data_)) {
            return GGML_STATUS_ABORTED;
        }
        SplitBlock &      b      = *g.blocks[k];
        const bool        counts = b.layer >= 0 && b.experts->counts(b.block.n_used(), g.n_tokens, b.n_expert);
        const ggml_status status = run_block(b, g.staging[k], graph, counts);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        counted = counted || counts;
    }
    if (counted) {
        g.blocks.front()->experts->end_step();
    }
    return launch(*g.blocks.back(), g.tail, graph);
}

ggml_status SplitStream::run_block(SplitBlock & b, const Staging & s, const ggml_cgraph * graph, bool counts) {
    ModelExperts & experts = *b.experts;
    const auto     now     = experts.snapshot(b.layer);
    const Side     side    = side_of(b, s, now);
    auto           mask    = now.mask;
    if (side == Side::host) {
        mask = nullptr; // whatever is resident: all rows are the host's
    }
    ++experts.counters.blocks;
    if (b.layer >= 0) {
        experts.set_cursor(b.layer + 1); // this one has its mask already
    }
    ggml_status status = launch(b, b.before, graph);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (side == Side::device) {
        ++experts.counters.blocks_device;
        if (counts) {
            fetch(b, b.block.ids, b.late_ids, b.ids_span);
            late_.push_back({&b, mask, b.block.ids->nb[1], b.block.n_used(), b.block.n_tokens()});
        }
        return launch_device_part(b, s, mask, graph);
    }

    fetch_ids_and_input(b, s);
    const size_t n_before = in_flight_.size();
    const bool   early = b.slot_lookup != nullptr; // the device looks the mask up itself and need not wait for the host
    if (side == Side::host) {
        ++experts.counters.blocks_host;
    } else if (early) {
        status = launch_device_part(b, s, mask, graph);
    }
    wait_for_ids(b, n_before);
    if (side == Side::both && !early) {
        status = launch_device_part(b, s, mask, graph);
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (counts) {
        experts.count(b.layer, ids_of(s.ids, 0, 0), b.block.ids->nb[1], b.block.n_used(), b.block.n_tokens(),
                      b.n_expert, mask.get());
    }
    const int n_rows = host_pairs(b, s, mask.get());
    if (n_rows == 0) {
        return GGML_STATUS_SUCCESS;
    }
    status = compute_host_part(b);
    return status == GGML_STATUS_SUCCESS ? join(b, s, n_rows, graph) : status;
}

void SplitStream::fetch_ids_and_input(SplitBlock & b, const Staging & s) {
    fetch(b, b.block.ids, s.ids, b.ids_span);
    fetch(b, b.block.input, s.input, ggml_nbytes(b.block.input));
    b.experts->counters.download_bytes += b.ids_span + ggml_nbytes(b.block.input);
    if (event_) {
        ggml_backend_event_record(event_.get(), inner_.get());
    }
}

SplitStream::Side SplitStream::side_of(SplitBlock & b, const Staging & s, const ModelExperts::Snapshot & now) {
    if (now.mask == nullptr || now.mask->none()) {
        return Side::host;
    }
    if (b.storage_generation != now.generation || !b.storage) {
        ggml_tensor * row = masked_ && fault() != Fault::compact ? masks_of(*b.experts).rows[b.layer] : nullptr;
        synchronize(); // launches under way read the nodes that are replaced
        prepare_device(b, s, device_buffer_.get(), inner_.get(), now.storage, now.generation, row);
    }
    if (!b.device_can) {
        return Side::host;
    }
    return now.mask->all() && b.slot_lookup != nullptr ? Side::device : Side::both;
}

ggml_status SplitStream::launch_device_part(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                                            const ggml_cgraph * graph) {
    in_flight_.push_back(mask);
    in_flight_.push_back(b.storage);
    if (b.slot_lookup != nullptr) {
        refresh_mask(b, mask);
    } else if (compact_pairs(b, s, *mask) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    return launch(b, b.device_nodes, graph);
}

void SplitStream::refresh_mask(SplitBlock & b, const std::shared_ptr<const Mask> & mask) {
    MaskTable & table = masks_of(*b.experts);
    if (table.versions[b.layer] == mask->version) {
        return;
    }
    const std::vector<int32_t> * slots = &mask->slot_of;
    if (fault() == Fault::swap_slots && mask->n_resident >= 2) {
        auto swapped = std::make_shared<std::vector<int32_t>>(mask->slot_of);
        auto first   = std::find_if(swapped->begin(), swapped->end(), [](int32_t slot) { return slot >= 0; });
        auto second  = std::find_if(first + 1, swapped->end(), [](int32_t slot) { return slot >= 0; });
        std::iter_swap(first, second);
        slots = swapped.get();
        in_flight_.push_back(std::move(swapped));
    }
    // on the compute stream: launches before it have read the older version
    send(b, table.rows[b.layer], slots->data(), slots->size() * sizeof(int32_t));
    table.versions[b.layer] = mask->version;
}

// Lists the device's (token, expert) pairs for the compact form, and queues the lists; returns their number.
int SplitStream::compact_pairs(SplitBlock & b, const Staging & s, const Mask & mask) {
    const int  n_used = b.block.n_used(), n_tokens = b.block.n_tokens();
    const auto all   = static_cast<size_t>(n_used) * n_tokens;
    int32_t *  from  = s.index + all;
    int32_t *  to    = from + all;
    int32_t *  slots = to + all;
    int        n     = 0;
    for (int t = 0; t < n_tokens; ++t) {
        const int32_t * ids = ids_of(s.ids, b.block.ids->nb[1], t);
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
        send(b, b.compact_gather->src[1], from, bytes);
        send(b, b.compact_scatter->src[1], to, bytes);
        send(b, b.compact_ids, slots, bytes);
    }
    return n;
}

// Writes the host's ids, -1 where the device computes, and returns the number of the host's rows.
int SplitStream::host_pairs(const SplitBlock & b, const Staging & s, const Mask * mask) {
    const int n_used = b.block.n_used(), n_tokens = b.block.n_tokens();
    int       n = 0;
    for (int t = 0; t < n_tokens; ++t) {
        const int32_t * ids = ids_of(s.ids, b.block.ids->nb[1], t);
        for (int u = 0; u < n_used; ++u) {
            const bool here            = mask == nullptr || mask->slot_of[ids[u]] < 0;
            s.host_ids[t * n_used + u] = here ? ids[u] : -1;
            n += here;
        }
    }
    return n;
}

// Waits for ids and input. What was queued before them is over then: the first `n_before` things in flight are let go.
void SplitStream::wait_for_ids(SplitBlock & b, size_t n_before) {
    const Timer timer(b.experts->counters.host_wait_ns);
    if (event_) {
        ggml_backend_event_synchronize(event_.get());
    } else {
        ggml_backend_synchronize(inner_.get());
    }
    in_flight_.erase(in_flight_.begin(), in_flight_.begin() + static_cast<std::ptrdiff_t>(n_before));
    ++b.experts->counters.host_waits;
}

ggml_status SplitStream::compute_host_part(SplitBlock & b) {
    const Timer timer(b.experts->counters.host_compute_ns);
    return ggml_backend_graph_compute(cpu_.get(), b.host_graph);
}

// Queues the host's rows and their way into the block's output.
ggml_status SplitStream::join(SplitBlock & b, const Staging & s, int n_rows, const ggml_cgraph * graph) {
    if (fault() == Fault::drop_join) {
        return GGML_STATUS_SUCCESS;
    }
    const size_t row   = static_cast<size_t>(b.block.out->ne[0]) * sizeof(float);
    const int    pairs = b.block.n_used() * b.block.n_tokens();
    const char * out   = static_cast<const char *>(b.host_out->data);
    b.experts->counters.join_bytes += n_rows * row;
    if (n_rows == pairs) {
        memcpy(s.rows, out, n_rows * row);
        send(b, b.block.out, s.rows, n_rows * row);
        return GGML_STATUS_SUCCESS;
    }
    int n = 0;
    for (int i = 0; i < pairs; ++i) {
        if (s.host_ids[i] >= 0) {
            memcpy(s.rows + n * row, out + i * row, row);
            s.index[n++] = i;
        }
    }
    set_join_rows(b, n);
    send(b, b.join_rows, s.rows, n * row);
    send(b, b.join_index, s.index, n * sizeof(int32_t));
    // a launch of its own: its shape changes with n, and the dense nodes around it keep theirs
    return launch(b, {b.join}, graph);
}

ggml_status SplitStream::launch(SplitBlock & b, const std::vector<ggml_tensor *> & nodes, const ggml_cgraph * graph) {
    if (nodes.empty()) {
        return GGML_STATUS_SUCCESS;
    }
    const Timer timer(b.experts->counters.queue_ns);
    ggml_cgraph part = {};
    part.size = part.n_nodes = static_cast<int>(nodes.size());
    part.nodes               = const_cast<ggml_tensor **>(nodes.data()); // read only by every backend
    part.use_counts          = graph->use_counts;
    part.visited_hash_set    = graph->visited_hash_set;
    part.order               = graph->order;
    return inner_->iface.graph_compute(inner_.get(), &part);
}

// Copies between staging and the device, queued on the compute stream.
void SplitStream::fetch(SplitBlock & b, const ggml_tensor * from, void * to, size_t bytes) {
    const Timer timer(b.experts->counters.queue_ns);
    ggml_backend_tensor_get_async(inner_.get(), from, to, 0, bytes);
}

void SplitStream::send(SplitBlock & b, ggml_tensor * to, const void * from, size_t bytes) {
    const Timer timer(b.experts->counters.queue_ns);
    ggml_backend_tensor_set_async(inner_.get(), to, from, 0, bytes);
}

// Counts blocks that ran wholly on the device; the stream has been synchronized.
void SplitStream::count_late() {
    for (const LateIds & late : late_) {
        late.b->experts->count(late.b->layer, ids_of(late.b->late_ids, 0, 0), late.stride, late.n_used, late.n_tokens,
                               late.b->n_expert, late.mask.get());
    }
    late_.clear();
}

} // namespace spac
