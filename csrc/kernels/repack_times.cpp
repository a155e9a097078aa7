#include "kernels/repack_times.h"

#include "kernels/measuring.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <new>
#include <random>

namespace spac::kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t n_elements = 2048, n_rows = 768; // of an expert
constexpr int64_t n_used     = 8;                  // experts of a token; a dense matrix is as large as these together
constexpr int64_t n_prompt   = 64;                 // tokens
constexpr int64_t n_popular  = 32;                 // experts of the prompt: 16 tokens for each, as in longer prompts
constexpr int     min_rounds = 3, max_rounds = 9;

struct PoolDeleter {
    void operator()(ggml_threadpool * pool) const { ggml_threadpool_free(pool); }
};

// The CPU backend with threads that stay: ggml would start new ones for every graph.
class Cpu {
  public:
    explicit Cpu(int n_threads) : n_threads_(n_threads), backend_(ggml_backend_cpu_init()) {
        ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
        pool_.reset(ggml_threadpool_new(&params));
        if (backend_ == nullptr || pool_ == nullptr) {
            throw std::bad_alloc();
        }
        ggml_backend_cpu_set_threadpool(backend_.get(), pool_.get());
        ggml_backend_cpu_set_n_threads(backend_.get(), n_threads);
    }

    double seconds_of(ggml_cgraph * graph) {
        const auto   start = Clock::now();
        const double cpu   = cpu_seconds();
        if (ggml_backend_graph_compute(backend_.get(), graph) != GGML_STATUS_SUCCESS) {
            throw std::bad_alloc(); // nothing else fails
        }
        const double took = std::chrono::duration<double>(Clock::now() - start).count();
        wall_ += took;
        cpu_ += cpu_seconds() - cpu;
        return took;
    }

    // The share of the graphs' time for which the threads ran.
    double running() const { return wall_ > 0 ? std::min(1.0, cpu_ / (wall_ * n_threads_)) : 1; }

  private:
    // Sums up all threads, which spin where they wait for each other.
    static double cpu_seconds() {
        timespec now{};
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
        return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
    }

    int                                           n_threads_;
    double                                        wall_ = 0, cpu_ = 0;
    std::unique_ptr<ggml_threadpool, PoolDeleter> pool_; // outlives the backend
    ggml_backend_ptr                              backend_;
};

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

// The matrices that operators read: all experts of a layer are one tensor, and a dense matrix is one.
ggml_tensor * new_weights(ggml_context * context, ggml_type type, bool experts, int64_t n_operators) {
    ggml_tensor * tensor = experts ? ggml_new_tensor_3d(context, type, n_elements, n_rows, n_used * n_operators)
                                   : ggml_new_tensor_2d(context, type, n_elements, n_rows * n_used);
    ggml_set_name(tensor, "measured");
    return tensor;
}

ggml_tensor * new_operator(ggml_context * context, ggml_tensor * weights, int64_t n_tokens) {
    if (weights->ne[2] == 1) {
        return ggml_mul_mat(context, weights, ggml_new_tensor_2d(context, GGML_TYPE_F32, n_elements, n_tokens));
    }
    ggml_tensor * input = ggml_new_tensor_3d(context, GGML_TYPE_F32, n_elements, 1, n_tokens);
    return ggml_mul_mat_id(context, weights, input, ggml_new_tensor_2d(context, GGML_TYPE_I32, n_used, n_tokens));
}

// Returns the extra buffer type that llama.cpp puts such weights into: the first one that supports their operator.
// Null where they stay plain.
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
    ggml_tensor *          product = new_operator(context.get(), weights, n_prompt);
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

// Weights of one form.
class Weights {
  public:
    // Plain ones.
    Weights(ggml_type type, bool experts, int64_t n_operators)
        : Weights(type, experts, n_operators, ggml_backend_cpu_buffer_type()) {
        const std::vector<char> blocks = some_blocks(type);
        for (ggml_tensor * tensor : tensors_) {
            fill(static_cast<char *>(tensor->data), ggml_nbytes(tensor), blocks);
        }
    }

    // The same in another buffer type.
    Weights(const Weights & plain, bool experts, int64_t n_operators, ggml_backend_buffer_type_t buffer_type)
        : Weights(plain.tensors_[0]->type, experts, n_operators, buffer_type) {
        for (size_t i = 0; i < tensors_.size(); i++) { // it is here that ggml repacks
            ggml_backend_tensor_set(tensors_[i], plain.tensors_[i]->data, 0, ggml_nbytes(plain.tensors_[i]));
        }
    }

    ggml_tensor * of_operator(int64_t i) const { return tensors_[static_cast<size_t>(i) % tensors_.size()]; }

  private:
    Weights(ggml_type type, bool experts, int64_t n_operators, ggml_backend_buffer_type_t buffer_type)
        : context_(new_context()) {
        for (int64_t i = 0; i < (experts ? 1 : n_operators); i++) {
            tensors_.push_back(new_weights(context_.get(), type, experts, n_operators));
        }
        buffer_ = allocate(context_.get(), buffer_type);
    }

    ggml_context_ptr           context_;
    ggml_backend_buffer_ptr    buffer_;
    std::vector<ggml_tensor *> tensors_;
};

// A graph of operators on these weights. For one token each operator reads weights of its own, all of them together.
class Graph {
  public:
    Graph(const Weights & weights, int64_t n_operators, int64_t n_tokens) : context_(new_context()) {
        graph_ = ggml_new_graph(context_.get());
        for (int64_t i = 0; i < n_operators; i++) {
            products_.push_back(new_operator(context_.get(), weights.of_operator(i), n_tokens));
            ggml_build_forward_expand(graph_, products_.back());
        }
        buffer_ = allocate(context_.get(), ggml_backend_cpu_buffer_type());
        set_inputs();
    }

    ggml_cgraph * get() const { return graph_; }

  private:
    void set_inputs() {
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

    static void set_ids(const ggml_tensor & product, std::vector<int32_t> & experts, std::minstd_rand & random) {
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
            ids[i] = experts.back(); // n_used divides their number, so a token names none twice
            experts.pop_back();
        }
    }

    ggml_context_ptr           context_;
    ggml_backend_buffer_ptr    buffer_;
    std::vector<ggml_tensor *> products_;
    ggml_cgraph *              graph_ = nullptr;
};

// So many operators read more of either form than the cache that cores share holds, where memory allows.
int64_t operators_of(size_t bytes_of_one) {
    const auto wanted = static_cast<int64_t>((shared_cache() + bytes_of_one - 1) / bytes_of_one);
    return std::clamp<int64_t>(wanted, 8, 16);
}

// Both forms of one type for one kind of operator. Repacked weights are compared with plain ones in the same round:
// other programs slow both.
class Race {
  public:
    Race(Cpu & cpu, ggml_type type, bool experts, ggml_backend_buffer_type_t repacked)
        : cpu_(cpu), gigabytes_(1e-9 * static_cast<double>(ggml_row_size(type, n_elements)) *
                                static_cast<double>(n_rows * n_used)),
          n_operators_(operators_of(static_cast<size_t>(gigabytes_ * 1e9))), plain_(type, experts, n_operators_) {
        if (repacked != nullptr) {
            repacked_ = std::make_unique<Weights>(plain_, experts, n_operators_, repacked);
        }
    }

    // Writes the times of one task.
    void run(int64_t n_tokens, double seconds, double & plain, double & repacked) const {
        const int64_t       n      = n_tokens == 1 ? n_operators_ : 1;
        const Graph         first  = Graph(plain_, n, n_tokens);
        const auto          second = repacked_ == nullptr ? nullptr : std::make_unique<Graph>(*repacked_, n, n_tokens);
        const auto          end    = Clock::now() + std::chrono::duration<double>(seconds);
        std::vector<double> took, ratios;
        for (int round = 0; round <= min_rounds || (round <= max_rounds && Clock::now() < end); round++) {
            const double mine  = cpu_.seconds_of(first.get());
            const double other = second == nullptr ? mine : cpu_.seconds_of(second->get());
            if (round > 0) { // the first one has everything to learn
                took.push_back(mine);
                ratios.push_back(other / mine);
            }
        }
        plain    = median(took) / (static_cast<double>(n * n_tokens) * gigabytes_);
        repacked = plain * median(ratios);
    }

  private:
    Cpu &                    cpu_;
    double                   gigabytes_; // of one operator
    int64_t                  n_operators_;
    Weights                  plain_;
    std::unique_ptr<Weights> repacked_;
};

FormTimes time_forms_of(Cpu & cpu, ggml_type type, double seconds) {
    FormTimes found;
    for (const bool experts : {true, false}) {
        ggml_backend_buffer_type_t repacked = repacked_buffer_type(type, experts);
        const Race                 race(cpu, type, experts, repacked);
        const auto                 first = static_cast<size_t>(experts ? Task::experts_of_token : Task::dense_of_token);
        race.run(1, seconds / n_tasks, found.plain[first], found.repacked[first]);
        race.run(n_prompt, seconds / n_tasks, found.plain[first + 1], found.repacked[first + 1]);
        found.can_repack = found.can_repack || repacked != nullptr;
    }
    return found;
}

} // namespace

int quantized_type(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const auto   type = static_cast<ggml_type>(i);
        const auto * cpu  = ggml_get_type_traits_cpu(type);
        if (ggml_is_quantized(type) && name == ggml_type_name(type) && cpu->vec_dot != nullptr &&
            n_elements % ggml_blck_size(type) == 0) {
            return i;
        }
    }
    return -1;
}

bool can_repack(int type) {
    const auto it = static_cast<ggml_type>(type);
    return repacked_buffer_type(it, true) != nullptr || repacked_buffer_type(it, false) != nullptr;
}

MeasuredForms time_forms(const std::vector<int> & types, int n_threads, double seconds) {
    Cpu           cpu(n_threads);
    MeasuredForms measured;
    for (const int type : types) {
        measured.times.push_back(time_forms_of(cpu, static_cast<ggml_type>(type), seconds));
    }
    measured.running = cpu.running();
    return measured;
}

} // namespace spac::kernels
