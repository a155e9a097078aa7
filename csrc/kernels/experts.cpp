// Computes a layer's experts as one operator (patches/0005-cpu-share-unpacking.patch).
//
// ggml has an operator for each product, activation and sum. All threads wait for each other behind every operator, and
// once more inside a product. So a layer's experts have 7 such waits, or 15 with the weighted sum. Here a thread
// computes rows of `gate` and `up` and the activation of these rows. The thread that finishes an expert's activation
// quantizes it. Then all threads wait, and share out the rows of `down`. The sum has one more wait before it.
//
// Every number comes from the same operations in the same order as ggml's, so results are ggml's to the bit.
#include "kernels/expert_nodes.h"
#include "kernels/operator.h"
#include "kernels/rows.h"
#include "kernels/shares.h"

#include "ggml-backend.h"
#include "ggml-cpu/ggml-cpu-impl.h"
#include "ggml-cpu/ops.h"
#include "ggml-impl.h"
#include "ggml.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

extern "C" {
extern int (*ggml_cpu_experts)(const ggml_cgraph * graph, int node_n, const ggml_compute_params * params,
                               void * counters);
}

namespace spac::kernels {
namespace {

constexpr int    most_pairs = 256;       // (token, expert); more of them keep threads busy anyhow
constexpr size_t most_input = 32 * 1024; // bytes of quantized input, which every thread has for itself

// The pairs (token, expert) that are computed, by expert.
class Pairs {
  public:
    explicit Pairs(const ggml_tensor * ids) : n_used_(ids->ne[0]) {
        const int64_t                    n = n_used_ * ids->ne[1];
        std::array<uint64_t, most_pairs> order; // NOLINT(*-member-init)
        size_t                           n_here = 0;
        for (int64_t i = 0; i < n; i++) {
            const int32_t id = *reinterpret_cast<const int32_t *>(static_cast<const char *>(ids->data) +
                                                                  static_cast<size_t>(i % n_used_) * ids->nb[0] +
                                                                  static_cast<size_t>(i / n_used_) * ids->nb[1]);
            if (id >= 0) {
                order[n_here++] = static_cast<uint64_t>(id) << 32 | static_cast<uint64_t>(i);
            } else {
                masked_[n_masked_++] = static_cast<int32_t>(i);
            }
        }
        std::sort(order.begin(), order.begin() + n_here);
        for (size_t k = 0; k < n_here; k++) {
            const auto id = static_cast<int64_t>(order[k] >> 32);
            if (n_experts_ == 0 || experts_[n_experts_ - 1] != id) {
                first_[n_experts_]     = static_cast<int32_t>(k);
                experts_[n_experts_++] = static_cast<int32_t>(id);
            }
            pairs_[k] = static_cast<int32_t>(order[k]);
        }
        first_[n_experts_] = static_cast<int32_t>(n_here);
    }

    int64_t n_experts() const { return n_experts_; }
    int64_t expert(int64_t k) const { return experts_[static_cast<size_t>(k)]; }
    int64_t n_pairs(int64_t k) const { return first_[static_cast<size_t>(k) + 1] - first_[static_cast<size_t>(k)]; }
    int64_t pair(int64_t k, int64_t i) const { return pairs_[static_cast<size_t>(first_[static_cast<size_t>(k)] + i)]; }
    int64_t place(int64_t pair) const { return pair % n_used_; }
    int64_t token(int64_t pair) const { return pair / n_used_; }
    int64_t n_masked() const { return n_masked_; }
    int64_t masked(int64_t i) const { return masked_[static_cast<size_t>(i)]; }

    int64_t most() const {
        int64_t n = 0;
        for (int64_t k = 0; k < n_experts_; k++) {
            n = std::max(n, n_pairs(k));
        }
        return n;
    }

  private:
    int64_t                             n_used_;
    int64_t                             n_experts_ = 0, n_masked_ = 0;
    std::array<int32_t, most_pairs>     experts_, pairs_, masked_; // NOLINT(*-member-init)
    std::array<int32_t, most_pairs + 1> first_;                    // NOLINT(*-member-init)
};

// The product of the experts that have pairs, with rows of input without gaps.
class ExpertRows : public Operator {
  public:
    ExpertRows(const Product & it, const Pairs & pairs, const char * inputs)
        : Operator(it.weights()), it_(it), pairs_(pairs), inputs_(inputs),
          row_(ggml_row_size(input_type(it.weights()), it.inputs()->ne[0])) {}

    int64_t      n_matrices() const override { return pairs_.n_experts(); }
    int64_t      n_inputs(int64_t k) const override { return pairs_.n_pairs(k); }
    const char * weights(int64_t k) const override {
        return static_cast<const char *>(weights_->data) + static_cast<size_t>(pairs_.expert(k)) * weights_->nb[2] +
               static_cast<size_t>(it_.first) * stride();
    }
    const char * input(int64_t k, int64_t i) const override {
        const int64_t pair = pairs_.pair(k, i), per_token = it_.inputs()->ne[1];
        return inputs_ + static_cast<size_t>(pairs_.place(pair) % per_token + pairs_.token(pair) * per_token) * row_;
    }
    char * result(int64_t k, int64_t i) const override {
        const int64_t pair = pairs_.pair(k, i);
        return row_of(it_.out(), pairs_.place(pair), pairs_.token(pair)) +
               static_cast<size_t>(it_.first) * sizeof(float);
    }

    // Adds the biases to a run's results.
    void add_bias(const Run & run) const {
        if (it_.biased == nullptr) {
            return;
        }
        const ggml_tensor * biases = it_.biased->src[1];
        const float *       bias =
            reinterpret_cast<const float *>(static_cast<const char *>(biases->data) +
                                            static_cast<size_t>(pairs_.expert(run.matrix)) * biases->nb[1]) +
            it_.first;
        for (int64_t i = 0; i < n_inputs(run.matrix); i++) {
            float * row = reinterpret_cast<float *>(result(run.matrix, i));
            for (int64_t k = run.begin; k < run.end; k++) {
                row[k] += bias[k];
            }
        }
    }

  private:
    Product       it_;
    const Pairs & pairs_;
    const char *  inputs_;
    size_t        row_;
};

// The numbers that all threads of a pool count in. They are zero before and after.
struct Counters {
    std::atomic<int> gate, down;           // pieces that were taken
    std::atomic<int> finished[most_pairs]; // by expert: rows whose activation is computed
};
static_assert(sizeof(Counters) <= 512 * sizeof(int)); // the patch's expert_counters

// One thread's part.
class Part {
  public:
    Part(const Layer & layer, const ggml_compute_params & params, Counters & counters, const Pairs & pairs,
         char * inputs)
        : layer_(layer), params_(params), counters_(counters), pairs_(pairs), inputs_(inputs),
          activations_(static_cast<char *>(params.wdata)),
          activation_row_(ggml_row_size(input_type(layer.down.weights()), layer.glu->ne[0])) {}

    void compute() {
        quantize_inputs();
        activate();
        if (params_.ith == 0) {
            counters_.down.store(0, std::memory_order_relaxed);
        }
        ggml_barrier(params_.threadpool);
        if (params_.ith == 0) {
            counters_.gate.store(0, std::memory_order_relaxed);
            for (int64_t k = 0; k < pairs_.n_experts(); k++) {
                counters_.finished[k].store(0, std::memory_order_relaxed);
            }
        }
        multiply_down();
        if (layer_.sum != nullptr) {
            ggml_barrier(params_.threadpool);
            add_up();
        }
    }

  private:
    void quantize_inputs() const {
        const ggml_tensor * inputs = layer_.gate.inputs();
        const ggml_type     type   = input_type(layer_.gate.weights());
        const size_t        size   = ggml_row_size(type, inputs->ne[0]);
        for (int64_t i = 0; i < inputs->ne[1] * inputs->ne[2]; i++) {
            const int64_t place = i % inputs->ne[1], token = i / inputs->ne[1];
            quantize_row(type, reinterpret_cast<const float *>(row_of(inputs, place, token)),
                         inputs_ + static_cast<size_t>(i) * size, inputs->ne[0]);
        }
        for (const ggml_tensor * written : {layer_.gate.out(), layer_.up.out(), layer_.glu}) {
            if (overlap(written, inputs)) { // the allocator has used the input's memory again
                ggml_barrier(params_.threadpool);
                return;
            }
        }
    }

    // Computes rows of gate and up, and the activation.
    void activate() const {
        const ExpertRows gate(layer_.gate, pairs_, inputs_), up(layer_.up, pairs_, inputs_);
        const auto       n_inputs = [&](int64_t k) { return pairs_.n_pairs(k); };
        Shares shares(pairs_.n_experts(), layer_.glu->ne[0], {params_.ith, params_.nth}, counters_.gate, 0, n_inputs);
        Run    run;
        bool   more = shares.next(run);
        while (more) {
            const Run now = run;
            compute_run(gate, now, [&] { fetch(up, now); });
            compute_run(up, now, [&] {
                more = shares.next(run);
                if (more) {
                    fetch(gate, run);
                }
            });
            gate.add_bias(now);
            up.add_bias(now);
            for (int64_t i = 0; i < pairs_.n_pairs(now.matrix); i++) {
                activate(gate.result(now.matrix, i), up.result(now.matrix, i), pairs_.pair(now.matrix, i), now);
            }
            const auto n_rows = static_cast<int>(now.end - now.begin);
            if (counters_.finished[now.matrix].fetch_add(n_rows, std::memory_order_acq_rel) + n_rows ==
                layer_.glu->ne[0]) {
                quantize_activations(now.matrix);
            }
        }
    }

    // Lets ggml compute the activation of a pair's rows. Its vectors begin at the same places as in a whole row.
    void activate(char * gate, char * up, int64_t pair, const Run & run) const {
        const size_t  offset = static_cast<size_t>(run.begin) * sizeof(float);
        const int64_t n      = run.end - run.begin;
        const auto    rows   = [&](ggml_tensor & t, char * data) {
            t.type = GGML_TYPE_F32;
            t.data = data + offset;
            for (int d = 0; d < GGML_MAX_DIMS; d++) {
                t.ne[d] = d == 0 ? n : 1;
                t.nb[d] = d == 0 ? sizeof(float) : static_cast<size_t>(n) * sizeof(float);
            }
        };
        ggml_tensor of_gate{}, of_up{}, out{};
        rows(of_gate, gate);
        rows(of_up, up);
        rows(out, row_of(layer_.glu, pairs_.place(pair), pairs_.token(pair)));
        out.op     = GGML_OP_GLU;
        out.src[0] = &of_gate;
        out.src[1] = &of_up;
        memcpy(out.op_params, layer_.glu->op_params, sizeof(out.op_params));
        ggml_compute_params alone = params_;
        alone.ith                 = 0;
        alone.nth                 = 1;
        ggml_compute_forward_glu(&alone, &out);
    }

    void quantize_activations(int64_t k) const {
        for (int64_t i = 0; i < pairs_.n_pairs(k); i++) {
            const int64_t pair = pairs_.pair(k, i);
            quantize_row(input_type(layer_.down.weights()),
                         reinterpret_cast<const float *>(row_of(layer_.glu, pairs_.place(pair), pairs_.token(pair))),
                         activations_ + static_cast<size_t>(pair) * activation_row_, layer_.glu->ne[0]);
        }
    }

    void multiply_down() const {
        const ggml_tensor * out = layer_.down.out();
        for (int64_t i = params_.ith; i < pairs_.n_masked(); i += params_.nth) {
            const int64_t pair = pairs_.masked(i);
            memset(row_of(out, pairs_.place(pair), pairs_.token(pair)), 0,
                   static_cast<size_t>(out->ne[0]) * sizeof(float));
        }
        const ExpertRows down(layer_.down, pairs_, activations_);
        const auto       n_inputs = [&](int64_t k) { return pairs_.n_pairs(k); };
        Shares shares(pairs_.n_experts(), out->ne[0], {params_.ith, params_.nth}, counters_.down, 0, n_inputs);
        compute_shares(down, shares, [&](const Run & run) { down.add_bias(run); });
    }

    // Adds up the weighted rows of each token's experts, in this thread's columns.
    void add_up() const {
        constexpr int64_t unit    = 16; // columns in a cache line
        const int64_t     n_units = (layer_.sum->ne[0] + unit - 1) / unit;
        const int64_t     begin   = n_units * params_.ith / params_.nth * unit;
        const int64_t     end     = std::min(n_units * (params_.ith + 1) / params_.nth * unit, layer_.sum->ne[0]);
        for (int64_t token = 0; token < layer_.n_tokens(); token++) {
            float * const sum = reinterpret_cast<float *>(row_of(layer_.sum, token, 0));
            for (int64_t place = 0; place < layer_.n_used(); place++) {
                const float * row    = reinterpret_cast<const float *>(row_of(layer_.down.out(), place, token));
                const float   weight = *reinterpret_cast<const float *>(row_of(layer_.mul->src[1], place, token));
#pragma GCC ivdep // `sum` is none of the rows
                for (int64_t i = begin; i < end; i++) {
                    sum[i] = place == 0 ? row[i] * weight : sum[i] + row[i] * weight;
                }
            }
        }
    }

    const Layer &               layer_;
    const ggml_compute_params & params_;
    Counters &                  counters_;
    const Pairs &               pairs_;
    char *                      inputs_;      // quantized
    char *                      activations_; // quantized, by pair; shared by all threads
    size_t                      activation_row_;
};

bool can_compute(const ggml_tensor * weights) {
    return has_kernel(weights) && weights->extra == nullptr &&
           (weights->buffer == nullptr || ggml_backend_buffer_is_host(weights->buffer)); // not repacked
}

// Returns true if a part can compute the layer. The answer is the same on all threads.
bool fits(const Layer & layer, const ggml_compute_params & params) {
    const ggml_tensor * inputs = layer.gate.inputs();
    const ggml_tensor * ids    = layer.gate.ids();
    const ggml_type     type   = input_type(layer.gate.weights());
    if (layer.up.inputs() != inputs || layer.up.ids() != ids || input_type(layer.up.weights()) != type ||
        inputs->type != GGML_TYPE_F32 || inputs->nb[0] != sizeof(float) || inputs->ne[3] != 1 ||
        inputs->ne[2] != ids->ne[1] ||
        ggml_row_size(type, inputs->ne[0]) * inputs->ne[1] * inputs->ne[2] > most_input ||
        ggml_row_size(input_type(layer.down.weights()), layer.glu->ne[0]) * ids->ne[0] * ids->ne[1] > params.wsize ||
        !has_rows(layer.glu, ids)) {
        return false;
    }
    const Product * const products[] = {&layer.gate, &layer.up, &layer.down};
    return std::all_of(std::begin(products), std::end(products), [&](const Product * it) {
        const ggml_tensor * biased = it->biased;
        const bool    bias   = biased == nullptr || (biased->src[1]->type == GGML_TYPE_F32 && biased->src[2] == ids &&
                                                biased->src[1]->nb[0] == sizeof(float));
        const int64_t n_rows = it == &layer.down ? it->out()->ne[0] : layer.glu->ne[0];
        return bias && can_compute(it->weights()) && has_rows(it->out(), ids) &&
               it->first + n_rows <= it->weights()->ne[1];
    });
}

int compute(const ggml_cgraph * graph, int node_n, const ggml_compute_params * params, void * counters) {
    const ggml_tensor * ids = graph->nodes[node_n]->src[2];
    Layer               layer;
    if (!enabled() || ggml_nelements(ids) > most_pairs || !find_layer(graph, node_n, layer) || !fits(layer, *params)) {
        return 0;
    }
    const Pairs   pairs(ids);
    const int64_t tiled = std::min({tiled_rows(layer.gate.weights()->type), tiled_rows(layer.up.weights()->type),
                                    tiled_rows(layer.down.weights()->type)});
    if (pairs.most() >= tiled) {
        return 0;
    }
    alignas(64) char inputs[most_input];
    Part(layer, *params, *static_cast<Counters *>(counters), pairs, inputs).compute();
    return layer.last - node_n;
}

const bool registered = [] {
    ggml_cpu_experts = &compute;
    return true;
}();

} // namespace
} // namespace spac::kernels
