// The implementation of a tap, for contexts on the SPAC device and on the CPU.
//
// On the device, the stream of the context calls it. Behind each node that enters an FFN, the graph gets one more node:
// the product of the target's router with this input. Its kernel writes to pinned host memory, if the device's kernels
// reach it. Otherwise one copy of all products is queued behind the graph. In both cases the device gets a token's
// graph in one launch.
//
// On the CPU, llama.cpp calls it at every node (`cb_eval`). The thread that decodes computes the products itself.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/graph/router.h"
#include "backend/graph/split_graph.h"
#include "backend/hidden_states/tap.h"
#include "backend/stream/compute_stream.h"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace spac {

// The products of the target's routers with a draft's states, from the moment when they are computed.
//
// A device's kernels, or the thread that decodes, write the products to host memory. The memory is filled with a mark
// before each token. A layer is known when none of its numbers is the mark. So no signal of the device is needed, and
// a token's graph stays one launch.
//
// The thread that decodes begins and ends tokens. Any other thread may wait for answers: it sleeps between its looks,
// and only while a token is under way.
class Predictions {
  public:
    // A router that is asked. `products` are its numbers in host memory.
    struct Row {
        Question                      question;
        std::shared_ptr<const Router> router;
        Chooser                       chooser;
        int                           n_expert;
        float *                       products;
    };

    // Sets the rows, none of which is under way. They use `memory`, which is kept.
    void set(std::vector<Row> rows, std::shared_ptr<ggml_backend_buffer> memory);
    // The thread that decodes may read them without a lock.
    const std::vector<Row> & rows() const { return rows_; }

    // Marks all rows: a token is computed from now on.
    void begin();
    // Ends the token, whose rows are no longer written. Returns its answers if `arrived`.
    Answers  end(bool arrived);
    bool     is_under_way() const { return under_way_; }
    uint64_t n_begun() const { return token_; }

    // See Tap.
    Answers next(uint64_t token, int n);
    void    stop();

  private:
    int     n_known(size_t from) const;
    Answers choose(int n) const;

    std::mutex                           mutex_; // guards what follows, but not the numbers in host memory
    std::condition_variable              changed_;
    std::vector<Row>                     rows_;
    std::shared_ptr<ggml_backend_buffer> memory_;
    std::atomic<uint64_t>                token_{0};
    std::atomic<bool>                    under_way_{false};
    bool                                 stopped_ = false;
};

class StreamTap : public Tap {
  public:
    // ---- Tap
    int      n_layer() const override { return n_layer_; }
    int      n_embd() const override { return n_embd_; }
    void     ask(std::shared_ptr<Experts> target, const std::vector<Question> & questions) override;
    Answers  answers() override { return predictions_.end(true); }
    uint64_t n_shown() const override { return predictions_.n_begun(); }
    Answers  next(uint64_t token, int n) override { return predictions_.next(token, n); }
    void     stop() override { predictions_.stop(); }

    std::pair<uintptr_t, uintptr_t> callback() override;

    // ---- the stream's side: `stream` is its compute stream
    using Run = std::function<ggml_status(ggml_cgraph * graph)>;
    // Notes the number of FFNs of a graph that will come.
    void plan(const ComputeStream & stream, const ggml_cgraph * graph);
    // Ends the tap, because its context is freed. None of the context's work may run any more.
    void end();
    // Calls `run` with the graph, or with its tapped form if it is to be tapped.
    ggml_status compute(ComputeStream & stream, ggml_cgraph * graph, const Run & run);

  private:
    // A graph with the tap's nodes in it.
    struct Tapped {
        explicit Tapped(const ggml_cgraph * graph) : image(graph), source(graph->uid), uid(ggml_graph_next_uid()) {}

        GraphImage                 image;
        uint64_t                   source; // the uid that the graph had last
        const uint64_t             uid;
        size_t                     n_rows = 0; // the number of routers that it asks
        uint64_t                   used   = 0; // time of the last use: the least recently used one is dropped first
        ggml_context_ptr           ctx;
        std::vector<ggml_tensor *> nodes;
    };
    // A router's matrix in the memory of the CPU.
    struct HostRow {
        const ggml_tensor * at = nullptr; // the first matrix of its FFN, once it has been met
        std::vector<float>  weight;       // [n_expert * width]
    };

    bool     on_device() const { return device_ != nullptr; }
    void     allocate(size_t n_rows, size_t row_bytes);
    void     forget();
    Tapped * tapped(ComputeStream & stream, const ggml_cgraph * graph);
    Tapped * add(ComputeStream & stream, const ggml_cgraph * graph, const std::vector<ggml_tensor *> & inputs);
    bool     fits(const std::vector<ggml_tensor *> & inputs) const;

    // The CPU's side: host_tap.cpp.
    void        load(const std::vector<Predictions::Row> & rows);
    static bool evaluate(ggml_tensor * node, bool ask, void * tap);
    bool        asks_at(const ggml_tensor * node);
    bool        show(const ggml_tensor * input);

    ggml_backend_dev_t device_  = nullptr; // the wrapped device, after plan(); null: the CPU
    int                n_layer_ = 0;
    int                n_embd_  = 0;
    Predictions        predictions_;
    size_t             row_bytes_ = 0;
    bool               straight_  = false; // kernels write to the host's memory

    // The products' memory, on the host; and on the device, if its kernels do not reach the host's memory.
    std::shared_ptr<ggml_backend_buffer> memory_;
    ggml_backend_buffer_ptr              device_memory_;
    ggml_context_ptr                     ctx_;
    ggml_tensor *                        all_products_ = nullptr;

    std::shared_ptr<Experts>             target_; // whose routers the graphs ask
    std::vector<std::unique_ptr<Tapped>> graphs_;
    uint64_t                             n_asked_  = 0;
    uint64_t                             untapped_ = 0; // uid of the last graph that was not tapped
    std::vector<HostRow>                 host_rows_;
    size_t                               host_next_ = 0; // the row that comes next
};

// Returns the tap of the scope that is open on this thread, or null if none is.
std::shared_ptr<StreamTap> tap_for_context();

// Returns the tensors that enter a graph's FFNs, [width, n_tokens] F32 each, in the order in which they are computed.
// Every FFN appears once, even if several matrices read the tensor. The search uses dataflow alone. It finds the one
// tensor that the matrices before an activation are multiplied with, if the result is multiplied with a matrix again.
// It also finds the tensor that a layer's experts read.
std::vector<ggml_tensor *> find_ffn_inputs(const ggml_cgraph * graph);

} // namespace spac
