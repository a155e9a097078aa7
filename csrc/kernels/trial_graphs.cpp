#include "kernels/trial_graphs.h"

#include "kernels/measuring.h"

#include "ggml-alloc.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <new>
#include <random>

namespace spac::kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t n_rows    = 768; // rows of an expert
constexpr int64_t n_used    = 8;   // experts of a token; a dense matrix is as large as these together
constexpr int64_t n_popular = 32;  // experts of a prompt: 16 tokens for each, as in longer prompts

// Returns the time of all threads, which spin where they wait for each other.
double cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

ggml_context_ptr new_context() {
    ggml_context_ptr context(ggml_init({size_t{1} << 20, nullptr, true}));
    if (context == nullptr) {
        throw std::bad_alloc();
    }
    return context;
}

ggml_backend_buffer_ptr allocate(ggml_context * context, ggml_backend_buffer_type_t type) {
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context, type));
    if (buffer == nullptr) {
        throw std::bad_alloc();
    }
    return buffer;
}

// Makes the matrices that operators read: all experts of a layer are one tensor, and a dense matrix is one.
ggml_tensor * new_weights(ggml_context * context, ggml_type type, bool experts, int64_t n_operators) {
    ggml_tensor * tensor = experts ? ggml_new_tensor_3d(context, type, trial_elements, n_rows, n_used * n_operators)
                                   : ggml_new_tensor_2d(context, type, trial_elements, n_rows * n_used);
    ggml_set_name(tensor, "measured");
    return tensor;
}

ggml_tensor * new_operator(ggml_context * context, ggml_tensor * weights, int64_t n_tokens) {
    if (weights->ne[2] == 1) {
        return ggml_mul_mat(context, weights, ggml_new_tensor_2d(context, GGML_TYPE_F32, trial_elements, n_tokens));
    }
    ggml_tensor * input = ggml_new_tensor_3d(context, GGML_TYPE_F32, trial_elements, 1, n_tokens);
    return ggml_mul_mat_id(context, weights, input, ggml_new_tensor_2d(context, GGML_TYPE_I32, n_used, n_tokens));
}

void set_ids(const ggml_tensor & product, std::vector<int32_t> & experts, std::minstd_rand & random) {
    const int64_t n_tokens = product.src[2]->ne[1];
    auto *        ids      = static_cast<int32_t *>(product.src[2]->data);
    for (int64_t i = 0; i < n_used * n_tokens; i++) {
        if (experts.empty()) {
            experts.resize(static_cast<size_t>(n_tokens == 1 ? product.src[0]->ne[2] : n_popular));
            for (size_t k = 0; k < experts.size(); k++) {
                experts[k] = static_cast<int32_t>(k);
            }
            std::shuffle(experts.begin(), experts.end(), random);
        }
        ids[i] = experts.back(); // n_used divides their number, so a token names each once at most
        experts.pop_back();
    }
}

} // namespace

TrialCpu::TrialCpu(int n_threads) : n_threads_(n_threads), backend_(ggml_backend_cpu_init()) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    params.poll                   = 0;
    pool_.reset(ggml_threadpool_new(&params));
    if (backend_ == nullptr || pool_ == nullptr) {
        throw std::bad_alloc();
    }
    ggml_backend_cpu_set_threadpool(backend_.get(), pool_.get());
    ggml_backend_cpu_set_n_threads(backend_.get(), n_threads);
}

double TrialCpu::seconds_of(ggml_cgraph * graph) {
    const auto   start = Clock::now();
    const double cpu   = cpu_seconds();
    if (ggml_backend_graph_compute(backend_.get(), graph) != GGML_STATUS_SUCCESS) {
        throw std::bad_alloc(); // nothing else can fail
    }
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    wall_ += took;
    cpu_ += cpu_seconds() - cpu;
    return took;
}

double TrialCpu::running() const { return wall_ > 0 ? std::min(1.0, cpu_ / (wall_ * n_threads_)) : 1; }

TrialWeights::TrialWeights(ggml_type type, bool experts, int64_t n_operators)
    : TrialWeights(type, experts, n_operators, ggml_backend_cpu_buffer_type()) {
    const std::vector<char> blocks = some_blocks(type);
    for (ggml_tensor * tensor : tensors_) {
        fill(static_cast<char *>(tensor->data), ggml_nbytes(tensor), blocks);
    }
}

TrialWeights::TrialWeights(const TrialWeights & plain, bool experts, int64_t n_operators,
                           ggml_backend_buffer_type_t buffer_type)
    : TrialWeights(plain.tensors_[0]->type, experts, n_operators, buffer_type) {
    for (size_t i = 0; i < tensors_.size(); i++) { // ggml repacks here
        ggml_backend_tensor_set(tensors_[i], plain.tensors_[i]->data, 0, ggml_nbytes(plain.tensors_[i]));
    }
}

TrialWeights::TrialWeights(ggml_type type, bool experts, int64_t n_operators, ggml_backend_buffer_type_t buffer_type)
    : context_(new_context()) {
    for (int64_t i = 0; i < (experts ? 1 : n_operators); i++) {
        tensors_.push_back(new_weights(context_.get(), type, experts, n_operators));
    }
    buffer_ = allocate(context_.get(), buffer_type);
}

TrialGraph::TrialGraph(const TrialWeights & weights, int64_t n_operators, int64_t n_tokens) : context_(new_context()) {
    graph_ = ggml_new_graph(context_.get());
    for (int64_t i = 0; i < n_operators; i++) {
        products_.push_back(new_operator(context_.get(), weights.of_operator(i), n_tokens));
        ggml_build_forward_expand(graph_, products_.back());
    }
    buffer_ = allocate(context_.get(), ggml_backend_cpu_buffer_type());
    set_inputs();
}

void TrialGraph::set_inputs() {
    std::minstd_rand     random(1);
    std::vector<int32_t> experts; // in any order, each once for all operators' first tokens
    for (ggml_tensor * product : products_) {
        auto * x = static_cast<float *>(product->src[1]->data);
        std::generate_n(x, ggml_nelements(product->src[1]),
                        [&] { return static_cast<float>(static_cast<int>(random() % 2001) - 1000) * .003F; });
        if (product->src[2] != nullptr) {
            set_ids(*product, experts, random);
        }
    }
}

size_t trial_operator_bytes(ggml_type type) {
    return ggml_row_size(type, trial_elements) * static_cast<size_t>(n_rows * n_used);
}

int64_t n_trial_operators(ggml_type type, int n_copies) {
    const size_t bytes  = trial_operator_bytes(type) * static_cast<size_t>(n_copies);
    const auto   wanted = static_cast<int64_t>((2 * shared_cache() + bytes - 1) / bytes);
    return std::clamp<int64_t>(wanted, 4, 16);
}

ggml_backend_buffer_type_t repacked_buffer_type(ggml_type type, bool experts) {
    ggml_backend_reg_t reg       = ggml_backend_cpu_reg();
    ggml_backend_dev_t device    = ggml_backend_reg_dev_get(reg, 0);
    const auto         get_extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_dev_get_extra_bufts"));
    if (get_extra == nullptr) {
        return nullptr;
    }
    const ggml_context_ptr context = new_context();
    ggml_tensor *          weights = new_weights(context.get(), type, experts, n_used);
    ggml_tensor *          product = new_operator(context.get(), weights, trial_prompt);
    for (ggml_backend_buffer_type_t * it = get_extra(device); it != nullptr && *it != nullptr; it++) {
        const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(*it, 0));
        weights->buffer      = empty.get();
        const bool supported = empty != nullptr && ggml_backend_dev_supports_op(device, product);
        weights->buffer      = nullptr;
        if (supported) {
            return *it;
        }
    }
    return nullptr;
}

} // namespace spac::kernels
