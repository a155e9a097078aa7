#include "backend/split/block_parts.h"

#include <algorithm>
#include <utility>

namespace spac {
namespace {

struct Missing {
    std::vector<char>    used;    // [n_expert]
    std::vector<int32_t> experts; // not resident, those with the most rows first
};

// Returns the missing experts of an execution whose ids are in staging.
Missing missing_of(const SplitBlock & b, const Staging & s, const Mask & mask) {
    Missing          found;
    std::vector<int> rows(b.n_expert, 0);
    for (int t = 0; t < b.block.n_tokens(); ++t) {
        const int32_t * ids = s.ids_of(b.block, t);
        for (int u = 0; u < b.block.n_used(); ++u) {
            ++rows[ids[u]];
        }
    }
    found.used.resize(b.n_expert);
    for (int e = 0; e < b.n_expert; ++e) {
        found.used[e] = static_cast<char>(rows[e] > 0);
        if (rows[e] > 0 && mask.slot_of[e] < 0) {
            found.experts.push_back(e);
        }
    }
    std::stable_sort(found.experts.begin(), found.experts.end(),
                     [&](int32_t a, int32_t c) { return rows[a] > rows[c]; });
    return found;
}

} // namespace

MissLoader::~MissLoader() {
    if (copies_) {
        ggml_backend_synchronize(copies_.get());
    }
}

bool MissLoader::loads(const SplitGraph & g) {
    const SplitBlock & b = *g.blocks.front();
    return b.experts->miss() != Miss::cpu && b.experts->demand.counts(b.block.n_used(), g.n_tokens, b.n_expert);
}

bool MissLoader::make_stream() {
    if (!copies_ && !refused_) {
        copies_.reset(ggml_backend_dev_init(stream_.device(), nullptr));
        copied_.reset(ggml_backend_event_new(stream_.device()));
        refused_ = !copies_ || !copied_;
        if (refused_) {
            GGML_LOG_WARN("spac: %s gave no stream with events: the CPU computes what is not resident\n",
                          ggml_backend_dev_name(stream_.device()));
        }
    }
    return !refused_;
}

MissLoader::Masks MissLoader::load(SplitBlock & b, const Staging & s, ModelExperts::Snapshot now) {
    ModelExperts & experts = *b.experts;
    const Missing  want    = missing_of(b, s, *now.mask);
    if (want.experts.empty() || !make_stream()) {
        return {now.mask, now.mask};
    }
    // A copy without leases, so that slots of this layer can be freed.
    const auto resident = std::make_shared<Mask>();
    resident->version   = now.mask->version;
    resident->slot_of   = now.mask->slot_of;

    ModelExperts::Misses misses = experts.begin_misses(b.layer, want.experts, want.used, now);
    if (misses.of.loads.empty()) {
        return {misses.of.mask != nullptr ? misses.of.mask : now.mask, resident};
    }
    start_ns_ = Trace::now();
    end_ns_   = 0;
    bytes_    = 0;
    copy(experts, misses);
    ggml_backend_event_record(copied_.get(), copies_.get());
    ggml_backend_event_wait(stream_.backend(), copied_.get());
    experts_   = b.experts;
    under_way_ = std::move(misses);
    return {under_way_.of.mask, resident};
}

void MissLoader::copy(const ModelExperts & experts, const ModelExperts::Misses & misses) {
    for (const Residency::Load & load : misses.of.loads) {
        const auto & weights = experts.weights_of(load.id.layer);
        for (size_t w = 0; w < weights.size(); ++w) {
            const size_t bytes = weights[w].bytes;
            bytes_ += bytes;
            const char *  data  = static_cast<const char *>(weights[w].tensor->data) + load.id.expert * bytes;
            ggml_tensor * slots = misses.storage->tensor(load.pool, static_cast<int>(w));
            for (const auto & slice : experts.pinned.slices(data, bytes)) { // the driver stages pageable slices itself
                ggml_backend_tensor_set_async(copies_.get(), slots, data + slice.offset,
                                              load.slot * bytes + slice.offset, slice.bytes);
            }
        }
    }
}

void MissLoader::await() {
    if (experts_ == nullptr || end_ns_ > 0) {
        return;
    }
    ggml_backend_event_synchronize(copied_.get());
    end_ns_ = Trace::now();
}

void MissLoader::finish() {
    if (experts_ == nullptr) {
        return;
    }
    await();
    ggml_backend_synchronize(copies_.get()); // it has ended; some devices reuse their resources only after a wait
    Span span;
    span.activity = Activity::copy;
    span.start_ns = start_ns_;
    span.end_ns   = end_ns_;
    span.ok       = 1;
    span.bytes    = static_cast<int64_t>(bytes_ / under_way_.of.loads.size());
    for (const Residency::Load & load : under_way_.of.loads) {
        span.layer  = load.id.layer;
        span.expert = load.id.expert;
        span.pool   = load.pool;
        experts_->tracer().add(span);
    }
    experts_->counters.load_bytes += bytes_;
    experts_->finish_misses(under_way_.of.loads.front().id.layer, under_way_);
    experts_.reset();
    under_way_ = {};
}

} // namespace spac
