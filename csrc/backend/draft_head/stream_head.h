// The implementation of a short head, which the stream of its context calls.
//
// The rows of the known tokens are copied to a matrix of their own on the device. A graph of few tokens gets three
// nodes in place of the head: the product with these rows, a fill of all logits with -inf, and the scattering of the
// product to the places of the tokens.
#pragma once

#include "backend/draft_head/short_head.h"
#include "backend/graph/graph_image.h"
#include "backend/stream/compute_stream.h"

#include <functional>
#include <memory>
#include <vector>

namespace spac {

class StreamHead : public ShortHead {
  public:
    StreamHead(int n_rows, int n_tokens) : n_wanted_(n_rows), n_tokens_(n_tokens) {}

    // ---- ShortHead
    int      n_rows() const override { return rows_ != nullptr ? static_cast<int>(rows_->ne[1]) : 0; }
    int      n_vocab() const override { return rows_ != nullptr ? static_cast<int>(head_->ne[1]) : 0; }
    size_t   bytes() const override { return rows_ != nullptr ? ggml_nbytes(head_) : 0; }
    void     set_on(bool on) override { on_ = on && rows_ != nullptr; }
    bool     on() const override { return on_; }
    void     note(const int32_t * tokens, size_t n) override;
    uint64_t n_noted() const override { return n_noted_; }
    uint64_t n_learned() const override { return n_learned_; }

    // ---- the stream's side: `stream` is its compute stream
    using Run = std::function<ggml_status(ggml_cgraph * graph)>;
    // Finds the head in a graph that will come, and copies its first rows.
    void plan(ComputeStream & stream, const ggml_cgraph * graph);
    // Ends the head, because its context is freed. None of the context's work may run any more.
    void end();
    // Calls `run` with the graph, or with the form that has the short head.
    ggml_status compute(ComputeStream & stream, ggml_cgraph * graph, const Run & run);

  private:
    struct Shortened {
        explicit Shortened(const ggml_cgraph * graph) : image(graph), source(graph->uid), uid(ggml_graph_next_uid()) {}

        GraphImage                 image;
        uint64_t                   source; // the uid that the graph had last
        const uint64_t             uid;
        uint64_t                   used = 0; // time of the last use: the least recently used one is dropped first
        ggml_context_ptr           ctx;
        std::vector<ggml_tensor *> nodes;
    };

    bool        make_rows(ComputeStream & stream, ggml_tensor * product);
    void        replace(ggml_context * ctx, ggml_tensor * product, std::vector<ggml_tensor *> & nodes) const;
    Shortened * shortened(ComputeStream & stream, const ggml_cgraph * graph);
    void        write(int row, int32_t token);

    const int                               n_wanted_;
    const int                               n_tokens_; // the most tokens of a graph with the short head
    bool                                    on_   = false;
    ggml_tensor *                           head_ = nullptr; // the model's, [n_embd, n_vocab]
    ggml_backend_buffer_ptr                 buffer_;         // of all below, on the device
    ggml_context_ptr                        ctx_;
    ggml_tensor *                           rows_     = nullptr; // [n_embd, n_rows]
    ggml_tensor *                           ids_      = nullptr; // the rows' tokens, int32 [n_rows]
    ggml_tensor *                           result_   = nullptr; // [1, n_rows, n_tokens]
    int                                     n_first_  = 0;       // the first rows, which stay
    int                                     next_row_ = 0;       // the row that the next token takes
    std::vector<int32_t>                    token_of_;           // of each row from n_first_ on, -1 for none
    std::vector<bool>                       knows_;              // by token
    std::vector<uint8_t>                    copy_;               // of a row
    std::vector<std::unique_ptr<Shortened>> graphs_;
    uint64_t                                n_asked_ = 0, n_noted_ = 0, n_learned_ = 0;
};

// Returns the head of the scope that is open on this thread, or null if none is.
std::shared_ptr<StreamHead> head_for_context();

} // namespace spac
