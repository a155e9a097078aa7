#include "backend/weight_stream.h"

#include "backend/fault.h"
#include "core/error.h"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace spac {
namespace {

size_t padded(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

} // namespace

std::vector<WeightStream::Turn> WeightStream::turns_of(const Block & block, ggml_backend_buffer_type_t type) {
    const size_t                            alignment = ggml_backend_buft_get_alignment(type);
    std::unordered_set<const ggml_tensor *> known;
    std::vector<Turn>                       turns;
    size_t                                  end = 0;
    for (const ggml_tensor * weight : block.weights) {
        const bool is_matrix = weight->ne[2] > 1;
        if (!known.insert(weight).second || (turns.empty() && !is_matrix)) {
            return {};
        }
        if (is_matrix) {
            turns.emplace_back();
            end = 0;
        }
        turns.back().weights.push_back(weight);
        turns.back().offsets.push_back(end);
        end += padded(ggml_backend_buft_get_alloc_size(type, weight), alignment);
    }
    return turns;
}

size_t WeightStream::region_bytes(const std::vector<Turn> & turns, ggml_backend_buffer_type_t type) {
    size_t bytes = 0;
    for (const Turn & turn : turns) {
        bytes = std::max(bytes, turn.offsets.back() + ggml_backend_buft_get_alloc_size(type, turn.weights.back()));
    }
    return padded(bytes, ggml_backend_buft_get_alignment(type));
}

bool WeightStream::affordable(ggml_backend_dev_t device, size_t region_bytes) {
    constexpr size_t always = size_t{1} << 30; // a matrix of all experts has some hundred MiB in most models
    size_t           free = 0, total = 0;
    ggml_backend_dev_memory(device, &free, &total);
    return n_regions * region_bytes <= std::max(always, total / 6);
}

WeightStream::WeightStream(ggml_backend_dev_t device, size_t region_bytes) : region_bytes_(region_bytes) {
    stream_.reset(ggml_backend_dev_init(device, nullptr));
    for (Region & region : regions_) {
        region.filled.reset(ggml_backend_event_new(device));
        region.read.reset(ggml_backend_event_new(device));
        if (!stream_ || !region.filled || !region.read) {
            throw DeviceError(std::string("device ") + ggml_backend_dev_name(device) + " gave no stream with events");
        }
    }
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
    buffer_.reset(ggml_backend_buft_alloc_buffer(type, n_regions * region_bytes));
    if (!buffer_) {
        throw MemoryError(std::string("device ") + ggml_backend_dev_name(device) + " has no room for " +
                          std::to_string((n_regions * region_bytes) >> 20) + " MiB of experts on their way");
    }
    ggml_backend_buffer_clear(buffer_.get(), 0);
    ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (int r = 0; r < n_regions; ++r) {
        regions_[r].base = static_cast<char *>(ggml_backend_buffer_get_base(buffer_.get())) + r * region_bytes;
    }
}

WeightStream::~WeightStream() { ggml_backend_synchronize(stream_.get()); }

void WeightStream::place(ggml_context * ctx, Turn & turn, int region) {
    turn.region = region;
    turn.staged.clear();
    for (size_t i = 0; i < turn.weights.size(); ++i) {
        ggml_tensor * staged = ggml_new_tensor(ctx, turn.weights[i]->type, GGML_MAX_DIMS, turn.weights[i]->ne);
        staged->data         = regions_[region].base + turn.offsets[i];
        staged->buffer       = buffer_.get();
        turn.staged.push_back(staged);
        const size_t padding = ggml_backend_buffer_get_alloc_size(buffer_.get(), staged) - ggml_nbytes(staged);
        zeros_.resize(std::max(zeros_.size(), padding));
    }
}

size_t WeightStream::fill(const Turn & turn) {
    Region & region = regions_[turn.region];
    ggml_backend_event_wait(stream_.get(), region.read.get());
    size_t sum = 0;
    for (size_t i = 0; i < turn.weights.size(); ++i) {
        ggml_tensor * staged = turn.staged[i];
        const size_t  bytes  = ggml_nbytes(staged);
        ggml_backend_tensor_set_async(stream_.get(), staged, turn.weights[i]->data, 0, bytes);
        sum += bytes;
        // some kernels read a little past the end, where another weight may have been: it must be finite
        const size_t padding = ggml_backend_buffer_get_alloc_size(buffer_.get(), staged) - bytes;
        if (padding > 0) {
            ggml_tensor tail = *staged;
            tail.type        = GGML_TYPE_I8;
            tail.ne[0] = tail.nb[1] = tail.nb[2] = tail.nb[3] = static_cast<int64_t>(padding);
            tail.ne[1] = tail.ne[2] = tail.ne[3] = tail.nb[0] = 1;
            tail.data                                         = static_cast<char *>(staged->data) + bytes;
            ggml_backend_tensor_set_async(stream_.get(), &tail, zeros_.data(), 0, padding);
        }
    }
    ggml_backend_event_record(region.filled.get(), stream_.get());
    return sum;
}

void WeightStream::wait_filled(const Turn & turn, ggml_backend_t compute) {
    if (fault() != Fault::early_turn) {
        ggml_backend_event_wait(compute, regions_[turn.region].filled.get());
    }
}

void WeightStream::note_read(const Turn & turn, ggml_backend_t compute) {
    ggml_backend_event_record(regions_[turn.region].read.get(), compute);
}

} // namespace spac
