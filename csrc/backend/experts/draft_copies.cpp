#include "backend/experts/draft_copies.h"

#include "core/error.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>

namespace spac {
namespace {

bool is_bias(const ggml_tensor * weight) { return weight->ne[2] == 1; }

bool has_kernel(ggml_backend_dev_t device, const ggml_tensor * copy) {
    const ggml_context_ptr ctx(ggml_init({4 * ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor *          experts = ggml_new_tensor_3d(ctx.get(), copy->type, copy->ne[0], copy->ne[1], copy->ne[2]);
    ggml_tensor *          input   = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, copy->ne[0], 1, 1);
    ggml_tensor *          ids     = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, 1, 1);
    return ggml_backend_dev_supports_op(device, ggml_mul_mat_id(ctx.get(), experts, input, ids));
}

// Quantizes expert `e` of `from` to where `to` has it. `row` is scratch memory.
void quantize(const ggml_tensor * from, int64_t e, const ggml_tensor * copy, char * to, std::vector<float> & row) {
    const auto convert = ggml_get_type_traits(from->type)->to_float;
    row.resize(static_cast<size_t>(from->ne[0]));
    for (int64_t i = 0; i < from->ne[1]; ++i) {
        const char * const data = static_cast<const char *>(from->data) + e * from->nb[2] + i * from->nb[1];
        if (convert != nullptr) {
            convert(data, row.data(), from->ne[0]);
        } else {
            memcpy(row.data(), data, row.size() * sizeof(float));
        }
        ggml_quantize_chunk(copy->type, row.data(), to + e * copy->nb[2] + i * copy->nb[1], 0, 1, copy->ne[0], nullptr);
    }
}

std::vector<char> quantized(const ggml_tensor * from, const ggml_tensor * copy, int n_threads) {
    std::vector<char>               bytes(ggml_nbytes(copy));
    std::atomic<int64_t>            next{0};
    std::vector<std::exception_ptr> failures(static_cast<size_t>(std::max(1, n_threads)));
    const auto                      work = [&](std::exception_ptr & failure) {
        try {
            std::vector<float> row;
            for (int64_t e = next++; e < from->ne[2]; e = next++) {
                quantize(from, e, copy, bytes.data(), row);
            }
        } catch (...) {
            failure = std::current_exception();
        }
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < failures.size(); ++i) {
        threads.emplace_back(work, std::ref(failures[i]));
    }
    work(failures[0]);
    for (auto & thread : threads) {
        thread.join();
    }
    for (const auto & failure : failures) {
        if (failure != nullptr) {
            std::rethrow_exception(failure);
        }
    }
    return bytes;
}

} // namespace

ggml_type DraftCopies::type_of(const std::string & name) {
    std::string known;
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        if (!ggml_is_quantized(type) || ggml_quantize_requires_imatrix(type) ||
            ggml_get_type_traits(type)->from_float_ref == nullptr) {
            continue;
        }
        if (name == ggml_type_name(type)) {
            return type;
        }
        known += (known.empty() ? "" : ", ") + std::string(ggml_type_name(type));
    }
    throw InputError("experts cannot be quantized to '" + name + "': choose one of " + known);
}

DraftCopies::DraftCopies(const std::vector<const ggml_tensor *> & weights, ggml_type type) {
    ctx_.reset(ggml_init({(weights.size() + 1) * ggml_tensor_overhead(), nullptr, true}));
    for (const ggml_tensor * weight : weights) {
        const int64_t block = ggml_blck_size(type);
        if (!is_bias(weight) && weight->ne[0] % block != 0) {
            throw InputError(std::string(weight->name) + " has rows of " + std::to_string(weight->ne[0]) +
                             " numbers, and " + ggml_type_name(type) + " has blocks of " + std::to_string(block) +
                             ": choose a type with smaller blocks, such as q4_0");
        }
        copies_[weight] = ggml_new_tensor(ctx_.get(), is_bias(weight) ? weight->type : type, 3, weight->ne);
    }
}

DraftCopies::DraftCopies(ggml_backend_dev_t device, const std::vector<const ggml_tensor *> & weights, ggml_type type,
                         int n_threads)
    : DraftCopies(weights, type) {
    for (const ggml_tensor * weight : weights) {
        if (!is_bias(weight) && !has_kernel(device, copies_.at(weight))) {
            throw InputError(std::string("device ") + ggml_backend_dev_name(device) + " cannot compute experts of " +
                             weight->name + " in " + ggml_type_name(type) + ": choose another type");
        }
    }
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx_.get(), ggml_backend_dev_buffer_type(device)));
    if (!buffer_) {
        throw MemoryError(std::string("device ") + ggml_backend_dev_name(device) + " has no room for " +
                          std::to_string(bytes_of(device, weights, type) >> 20) + " MiB of low-bit experts");
    }
    ggml_backend_buffer_clear(buffer_.get(), 0); // some kernels read a little past a row's end
    ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (const ggml_tensor * weight : weights) {
        ggml_tensor * const copy = copies_.at(weight);
        if (is_bias(weight)) {
            ggml_backend_tensor_set(copy, weight->data, 0, ggml_nbytes(weight));
        } else {
            const auto bytes = quantized(weight, copy, n_threads);
            ggml_backend_tensor_set(copy, bytes.data(), 0, bytes.size());
        }
    }
}

ggml_tensor * DraftCopies::of(const ggml_tensor * weight) const {
    const auto found = copies_.find(weight);
    return found == copies_.end() ? nullptr : found->second;
}

size_t DraftCopies::bytes_of(ggml_backend_dev_t device, const std::vector<const ggml_tensor *> & weights,
                             ggml_type type) {
    const DraftCopies tensors(weights, type);
    return ggml_backend_alloc_ctx_tensors_from_buft_size(tensors.ctx_.get(), ggml_backend_dev_buffer_type(device));
}

} // namespace spac
