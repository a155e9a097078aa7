#include "backend/prefill/prefill_runner.h"

#include "backend/device/capabilities.h"
#include "backend/device/device.h"
#include "backend/device/settings.h"
#include "backend/experts/model_experts.h"
#include "backend/stream/compute_stream.h"
#include "core/error.h"
#include "core/slot_table.h"

#include <algorithm>
#include <string>

namespace spac {
namespace {

// Bytes with which the ways of uploads from pageable memory are compared. Fewer than the least say nothing.
constexpr size_t most_trial_bytes = size_t{32} << 20, least_trial_bytes = size_t{4} << 20;

// Returns the bytes that the link moves in the fixed time of one copy, which even the smallest copy takes.
size_t copy_bytes(ggml_backend_t stream) {
    const StreamExtension * const extension = extension_of(stream);
    return extension != nullptr ? extension->bytes_per_copy() : size_t{64} << 10; // some microseconds on PCIe
}

// Returns a part of a tensor's bytes as a tensor.
ggml_tensor bytes_of(const ggml_tensor & whole, size_t offset, size_t bytes) {
    ggml_tensor part = {};
    part.type        = GGML_TYPE_I8;
    part.buffer      = whole.buffer;
    part.data        = static_cast<char *>(whole.data) + offset;
    part.ne[0] = part.nb[1] = part.nb[2] = part.nb[3] = static_cast<int64_t>(bytes);
    part.ne[1] = part.ne[2] = part.ne[3] = part.nb[0] = 1;
    return part;
}

} // namespace

WeightStream::WeightStream(const ComputeStream & compute, size_t region_bytes)
    : compute_(compute), region_bytes_(region_bytes) {
    ggml_backend_dev_t device = compute.device();
    stream_.reset(ggml_backend_dev_init(device, nullptr));
    for (Region & region : regions_) {
        region.filled.reset(ggml_backend_event_new(device));
        region.read.reset(ggml_backend_event_new(device));
        if (!stream_ || !region.filled || !region.read) {
            throw DeviceError(std::string("device ") + ggml_backend_dev_name(device) + " gave no stream with events");
        }
    }
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
    buffer_.reset(ggml_backend_buft_alloc_buffer(type, WeightStage::n_regions * region_bytes));
    if (!buffer_) {
        throw MemoryError(std::string("device ") + ggml_backend_dev_name(device) + " has no room for " +
                          std::to_string((WeightStage::n_regions * region_bytes) >> 20) +
                          " MiB of experts on their way");
    }
    ggml_backend_buffer_clear(buffer_.get(), 0);
    ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (int r = 0; r < WeightStage::n_regions; ++r) {
        regions_[r].base = static_cast<char *>(ggml_backend_buffer_get_base(buffer_.get())) + r * region_bytes;
    }
}

WeightStream::~WeightStream() { ggml_backend_synchronize(stream_.get()); }

void WeightStream::end() {
    if (!filled_) {
        return;
    }
    ggml_backend_synchronize(stream_.get());
    for (Region & region : regions_) {
        ggml_backend_event_synchronize(region.filled.get());
        ggml_backend_event_synchronize(region.read.get());
    }
    filled_ = false;
    held_.clear();
    spans_.clear();
}

void WeightStream::place(ggml_context * ctx, WeightStage & stage, int region) {
    stage.region = region;
    stage.staged.clear();
    for (size_t i = 0; i < stage.weights.size(); ++i) {
        ggml_tensor * staged = ggml_new_tensor(ctx, stage.weights[i]->type, GGML_MAX_DIMS, stage.weights[i]->ne);
        staged->data         = regions_[region].base + stage.offsets[i];
        staged->buffer       = buffer_.get();
        stage.staged.push_back(staged);
        const size_t padding = ggml_backend_buffer_get_alloc_size(buffer_.get(), staged) - ggml_nbytes(staged);
        need_zeros(padding);
    }
}

// Makes at least `bytes` zeros in pinned memory. The driver stages copies from other memory itself.
void WeightStream::need_zeros(size_t bytes) {
    if (bytes == 0 || (zeros_ && ggml_backend_buffer_get_size(zeros_.get()) >= bytes)) {
        return;
    }
    ggml_backend_synchronize(stream_.get()); // copies under way read the zeros that are replaced
    zeros_ = compute_.host_buffer(bytes);
    if (!zeros_) {
        throw MemoryError("no memory for the padding behind weights");
    }
    ggml_backend_buffer_clear(zeros_.get(), 0);
}

struct WeightStream::Slots {
    std::vector<int32_t>               slot_of; // by expert; -1: no slot
    std::shared_ptr<const SlotStorage> storage; // null if no expert is resident
    int                                pool = 0;
};

void WeightStream::fill(const WeightStage & stage, ModelExperts & experts, int layer) {
    const auto now = experts.snapshot(layer);
    Slots      slots;
    if (now.mask != nullptr && !now.mask->none()) {
        slots = {now.mask->slot_of, now.storage, experts.pool_of(layer)};
        held_.push_back(now.mask);
    }
    Region & region = regions_[stage.region];
    filled_         = true;
    ggml_backend_event_wait(stream_.get(), region.read.get());
    const auto recorded = begin_span(experts, layer);
    Moved      sum;
    for (size_t i = 0; i < stage.weights.size(); ++i) {
        const Moved moved =
            copy_weight(*stage.weights[i], *stage.staged[i], slots, stage.first + static_cast<int>(i), experts.pinned);
        sum.uploaded += moved.uploaded;
        sum.copied += moved.copied;
        sum.staged += moved.staged;
        clear_padding(*stage.staged[i]);
    }
    end_span(recorded, sum);
    ggml_backend_event_record(region.filled.get(), stream_.get());
    experts.counters.stream_bytes += sum.uploaded;
    experts.counters.stream_slot_bytes += sum.copied;
    experts.counters.stream_ring_bytes += sum.staged;
}

// Queues the copy of pageable bytes over the link. Returns the number of those that pass our pinned ring. The first
// copy that is large enough is made in several ways, to choose one.
size_t WeightStream::upload(ggml_tensor & staged, const char * from, size_t offset, size_t bytes) {
    if (!way_chosen_ && (bytes >= least_trial_bytes || upload_threads() >= 0)) {
        way_chosen_ = true;
        pageable_   = best_uploads(stream_.get(), [&](PageableUploads * way) {
            const size_t n = std::min(bytes, most_trial_bytes);
            way != nullptr ? way->upload(staged, from, offset, n)
                             : ggml_backend_tensor_set_async(stream_.get(), &staged, from, offset, n);
            ggml_backend_synchronize(stream_.get());
        });
    }
    if (pageable_ == nullptr) {
        ggml_backend_tensor_set_async(stream_.get(), &staged, from, offset, bytes);
        return 0;
    }
    pageable_->upload(staged, from, offset, bytes);
    return bytes;
}

// Queues the copies of weight `w` of a layer: first those over the link, then those from slots.
WeightStream::Moved WeightStream::copy_weight(const ggml_tensor & weight, ggml_tensor & staged, const Slots & slots,
                                              int w, const PinnedRanges & pinned) {
    ggml_tensor * resident = slots.storage != nullptr ? slots.storage->tensor(slots.pool, w) : nullptr;
    Moved         moved;
    const auto    over_link = [&](size_t offset, size_t bytes) {
        const char * data = static_cast<const char *>(weight.data) + offset;
        for (const auto & slice : pinned.slices(data, bytes)) {
            const char * from = data + slice.offset;
            if (slice.pinned) {
                ggml_backend_tensor_set_async(stream_.get(), &staged, from, offset + slice.offset, slice.bytes);
            } else {
                moved.staged += upload(staged, from, offset + slice.offset, slice.bytes);
            }
        }
        moved.uploaded += bytes;
    };
    if (resident == nullptr) {
        over_link(0, ggml_nbytes(&staged));
        return moved;
    }
    const size_t bytes = ggml_nbytes(&staged) / slots.slot_of.size(); // bytes of an expert
    const auto   runs  = copy_runs(slots.slot_of, bytes, copy_bytes(stream_.get()));
    for (const CopyRun & run : runs) {
        if (run.slot < 0) {
            over_link(run.first * bytes, run.count * bytes);
        }
    }
    for (const CopyRun & run : runs) {
        if (run.slot < 0) {
            continue;
        }
        if (copy_from_slots(*resident, run.slot * bytes, staged, run.first * bytes, run.count * bytes)) {
            moved.copied += run.count * bytes;
        } else { // the device has no such copy
            over_link(run.first * bytes, run.count * bytes);
        }
    }
    return moved;
}

// Queues a copy inside the device. Returns false if the device has no asynchronous one.
bool WeightStream::copy_from_slots(ggml_tensor & from, size_t from_byte, ggml_tensor & to, size_t to_byte,
                                   size_t bytes) {
    const auto copy = stream_->iface.cpy_tensor_async;
    if (copy == nullptr) {
        return false;
    }
    const ggml_tensor source = bytes_of(from, from_byte, bytes);
    ggml_tensor       target = bytes_of(to, to_byte, bytes);
    return copy(stream_.get(), stream_.get(), &source, &target);
}

// Queues zeros for the padding behind a weight. Some kernels read a little past the end, where the bytes of an earlier
// weight might not be finite numbers.
void WeightStream::clear_padding(ggml_tensor & staged) {
    const size_t bytes   = ggml_nbytes(&staged);
    const size_t padding = ggml_backend_buffer_get_alloc_size(buffer_.get(), &staged) - bytes;
    if (padding > 0) {
        ggml_tensor tail = bytes_of(staged, bytes, padding);
        ggml_backend_tensor_set_async(stream_.get(), &tail, ggml_backend_buffer_get_base(zeros_.get()), 0, padding);
    }
}

std::shared_ptr<WeightStream::Recorded> WeightStream::begin_span(const ModelExperts & experts, int layer) {
    if (!experts.tracer().on()) {
        return nullptr;
    }
    auto recorded             = std::make_shared<Recorded>(experts.trace(), Span{});
    recorded->second.activity = Activity::fill;
    recorded->second.layer    = layer;
    if (StreamExtension * const extension = extension_of(stream_.get())) {
        recorded->second.ok = 1;
        extension->call([recorded] { recorded->second.start_ns = Trace::now(); });
    } else {
        recorded->second.ok       = 0;
        recorded->second.start_ns = Trace::now();
    }
    return recorded;
}

void WeightStream::end_span(const std::shared_ptr<Recorded> & recorded, const Moved & moved) {
    if (recorded == nullptr) {
        return;
    }
    if (StreamExtension * const extension = extension_of(stream_.get())) {
        extension->call([recorded, bytes = static_cast<int64_t>(moved.uploaded)] {
            recorded->second.bytes  = bytes;
            recorded->second.end_ns = Trace::now();
            recorded->first->add(recorded->second);
        });
    } else {
        recorded->second.bytes = static_cast<int64_t>(moved.uploaded);
        spans_.push_back(*recorded);
    }
}

void WeightStream::wait_filled(const WeightStage & stage, ComputeStream & compute) {
    ggml_backend_event_wait(compute.backend(), regions_[stage.region].filled.get());
    // U works in order, so earlier fills end before this one
    for (auto & mask : held_) {
        compute.hold(std::move(mask));
    }
    for (auto & [trace, span] : spans_) {
        compute.record_until_over(std::move(trace), span);
    }
    held_.clear();
    spans_.clear();
}

void WeightStream::note_read(const WeightStage & stage, ComputeStream & compute) {
    ggml_backend_event_record(regions_[stage.region].read.get(), compute.backend());
}

} // namespace spac
