#include "backend/split/block_parts.h"

#include "backend/device/timer.h"
#include "backend/experts/model_experts.h"
#include "core/error.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cstring>

namespace spac {
namespace {

// Returns the number of distinct experts among the host's rows.
int n_distinct(const SplitBlock & b, const Staging & s) {
    std::vector<int32_t> ids(s.host_ids, s.host_ids + b.block.n_used() * b.block.n_tokens());
    std::sort(ids.begin(), ids.end());
    const auto end = std::unique(ids.begin(), ids.end());
    return static_cast<int>(end - std::lower_bound(ids.begin(), end, 0));
}

std::shared_ptr<HostThreads> new_threads() {
    auto threads = std::make_shared<HostThreads>();
    threads->cpu.reset(ggml_backend_cpu_init());
    if (!threads->cpu) {
        throw DeviceError("the CPU backend could not be started");
    }
    return threads;
}

} // namespace

void HostPart::set_n_threads(int n_threads) { n_threads_ = std::max(1, n_threads); }

std::unique_lock<std::mutex> HostPart::start(ModelExperts & experts) {
    if (threads_ == nullptr) {
        threads_ = std::static_pointer_cast<HostThreads>(experts.shared_among_streams(new_threads));
    }
    std::unique_lock lock(threads_->in_use, std::try_to_lock);
    if (!lock) { // another context of the model computes on another thread
        threads_ = new_threads();
        lock     = std::unique_lock(threads_->in_use);
    }
    auto & pool = threads_->pool;
    if (pool == nullptr || n_threads_ > pool->n_threads()) {
        ggml_backend_cpu_set_threadpool(threads_->cpu.get(), nullptr);
        pool.reset(); // before the new pool is made: the threads of both would need cores
        // waiting threads spin for some microseconds between layers
        pool = std::make_unique<ThreadPool>(n_threads_, share_cores_ ? 0 : 1);
        ggml_backend_cpu_set_threadpool(threads_->cpu.get(), pool->get());
    }
    ggml_backend_cpu_set_n_threads(threads_->cpu.get(), n_threads_);
    return lock;
}

void HostPart::read_early(const SplitBlock & b, const Mask * mask, const Gate & gate, uint64_t mark) {
    constexpr size_t most_bytes = size_t{8} << 20; // a part of the processor's last cache
    size_t           n_bytes    = 0;
    early_.clear();
    early_ids_.clear();
    if (b.layer < 0 || gate.has_signalled(mark)) {
        return;
    }
    const auto & weights = b.experts->weights_of(b.layer);
    for (const int32_t id : threads_->next.foretell(threads_->cpu.get(), b)) {
        if (mask != nullptr && mask->slot_of[id] >= 0) {
            continue;
        }
        early_ids_.push_back(id);
        for (const ExpertWeight & weight : weights) {
            const auto * all = static_cast<const char *>(weight.tensor->data);
            early_.push_back({all + static_cast<size_t>(id) * weight.bytes, weight.bytes});
            n_bytes += weight.bytes;
        }
        if (n_bytes > most_bytes) {
            break;
        }
    }
    b.experts->counters.early_bytes +=
        threads_->early_rows.read(threads_->cpu.get(), early_, [&] { return gate.has_signalled(mark); });
}

void HostPart::note_early(const SplitBlock & b, const std::vector<int32_t> & ids) {
    b.experts->counters.early += early_ids_.size();
    b.experts->counters.early_right +=
        static_cast<uint64_t>(std::count_if(early_ids_.begin(), early_ids_.end(), [&](int32_t id) {
            return std::find(ids.begin(), ids.end(), id) != ids.end();
        }));
}

HostPart::Served HostPart::serve(const SplitBlock & b, const Staging & s, const Mask * mask) {
    Served served = {select(b, s, mask), GGML_STATUS_SUCCESS, 0};
    if (b.experts->rehearses) {
        clear(b);
    } else if (served.n_rows > 0) {
        SpanScope scope(b.experts->tracer(), Activity::host_experts, b.layer);
        scope.span.count    = served.n_rows;
        scope.span.distinct = b.experts->tracer().on() ? n_distinct(b, s) : -1;
        const auto start    = Clock::now();
        served.status       = ggml_backend_graph_compute(threads_->cpu.get(), b.host_graph);
        served.ns           = ns_since(start);
        b.experts->counters.host_compute_ns += static_cast<uint64_t>(served.ns);
    }
    return served;
}

void HostPart::clear(const SplitBlock & b) { memset(b.host_out->data, 0, ggml_nbytes(b.host_out)); }

// Writes the host's ids, with -1 for rows that the device computes, and returns the number of the host's rows.
int HostPart::select(const SplitBlock & b, const Staging & s, const Mask * mask) {
    const int n_used = b.block.n_used(), n_tokens = b.block.n_tokens();
    int       n = 0;
    for (int t = 0; t < n_tokens; ++t) {
        const int32_t * ids = s.ids_of(b.block, t);
        for (int u = 0; u < n_used; ++u) {
            const bool here            = mask == nullptr || mask->slot_of[ids[u]] < 0;
            s.host_ids[t * n_used + u] = here ? ids[u] : -1;
            n += here;
        }
    }
    return n;
}

} // namespace spac
