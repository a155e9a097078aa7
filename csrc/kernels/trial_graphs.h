// Graphs of matrix products on the CPU. They measure whole operators with all threads.
#pragma once

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace spac::kernels {

constexpr int64_t trial_elements = 2048; // elements of a row of weights
constexpr int64_t trial_prompt   = 64;   // tokens of a prompt

// The CPU backend with threads that stay; ggml would start new ones for every graph. The threads sleep between graphs.
class TrialCpu {
  public:
    // Throws std::bad_alloc.
    explicit TrialCpu(int n_threads);

    double seconds_of(ggml_cgraph * graph);

    // Returns the share of the graphs' time for which the threads ran.
    double running() const;

  private:
    struct PoolDeleter {
        void operator()(ggml_threadpool * pool) const { ggml_threadpool_free(pool); }
    };

    int                                           n_threads_;
    double                                        wall_ = 0, cpu_ = 0;
    std::unique_ptr<ggml_threadpool, PoolDeleter> pool_; // outlives the backend
    ggml_backend_ptr                              backend_;
};

// Weights that operators read: one tensor with the experts of all operators, or a dense matrix for each.
class TrialWeights {
  public:
    // Makes plain weights of random blocks. Throws std::bad_alloc, as all that allocates here.
    TrialWeights(ggml_type type, bool experts, int64_t n_operators);

    // Makes the same weights in another buffer type, for which ggml repacks them.
    TrialWeights(const TrialWeights & plain, bool experts, int64_t n_operators, ggml_backend_buffer_type_t buffer_type);

    ggml_tensor * of_operator(int64_t i) const { return tensors_[static_cast<size_t>(i) % tensors_.size()]; }

  private:
    TrialWeights(ggml_type type, bool experts, int64_t n_operators, ggml_backend_buffer_type_t buffer_type);

    ggml_context_ptr           context_;
    ggml_backend_buffer_ptr    buffer_;
    std::vector<ggml_tensor *> tensors_;
};

// A graph of operators on weights. For one token each operator reads weights of its own; together they read all
// weights.
class TrialGraph {
  public:
    TrialGraph(const TrialWeights & weights, int64_t n_operators, int64_t n_tokens);

    ggml_cgraph * get() const { return graph_; }

  private:
    void set_inputs();

    ggml_context_ptr           context_;
    ggml_backend_buffer_ptr    buffer_;
    std::vector<ggml_tensor *> products_;
    ggml_cgraph *              graph_ = nullptr;
};

// Returns the bytes of weights that one operator reads for a token.
size_t trial_operator_bytes(ggml_type type);

// Returns how many operators together read more than the cache that cores share holds. `n_copies` copies of their
// weights are read in turns. The number is limited, to save memory.
int64_t n_trial_operators(ggml_type type, int n_copies);

// Returns the extra buffer type that llama.cpp puts such weights into: the first one that supports their operator.
// Returns null if they stay plain.
ggml_backend_buffer_type_t repacked_buffer_type(ggml_type type, bool experts);

} // namespace spac::kernels
