// The interface of a tap: it shows a draft's hidden states to the routers of its target while a token is drafted
// (SP-MoE, section 3.2, Algorithm 1).
//
// The states are the inputs of every layer's FFN (behind attention, residual and FFN norm). The routers' products are
// nodes of the draft's own graph, and leave it layer by layer. So copies of experts can begin while the draft computes
// its later layers.
//
// This header is part of the backend's public interface (experts.h), and names no ggml type. stream_tap.h implements
// it.
#pragma once

#include "core/home_process.h"
#include "core/not_copied.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace spac {

class Experts;

// A layer of the target whose router is asked.
struct Question {
    int layer;    // the MoE layer, in the target's experts
    int input;    // the FFN of the draft whose input the router gets
    int n_chosen; // the number of experts that it names
};

// The experts that routers have chosen for one token, best first.
struct Answers {
    uint64_t             token = 0; // the number of the token; 0: none
    int                  n     = 0; // the number of layers that are known; the first ones are known first
    int                  width = 0; // the largest number of experts that a layer names
    std::vector<int32_t> ids;       // [n * width], -1 where a layer names fewer
};

// A tap of one context, whose tokens are shown if they are decoded alone. All functions but next() and stop() belong to
// the thread that uses the context, between decodes.
class Tap {
  public:
    virtual ~Tap() = default;

    const HomeProcess home;

    // Return the number of FFNs that were found in the context's graphs, one per layer, in the order in which they run,
    // and their width. Both are 0 before the context is made, and if its graphs do not run wholly on the SPAC device.
    virtual int n_layer() const = 0;
    virtual int n_embd() const  = 0;

    // Asks from the next token on. Questions stand in the order in which their inputs are computed. None, as at first,
    // costs nothing. Throws InputError for a layer whose router cannot be asked, and MemoryError if the device has no
    // memory for the answers.
    virtual void ask(std::shared_ptr<Experts> target, const std::vector<Question> & questions) = 0;
    // Returns the answers for the token that was decoded last, whose logits must have been read. `n` is 0 if the token
    // was not shown.
    virtual Answers answers() = 0;
    // Returns the number of tokens that were shown so far. Tokens are numbered from 1 on.
    virtual uint64_t n_shown() const = 0;

    // Waits until a token after `token` has an answer, or more than `n` layers of that token are known, and returns
    // these answers. Returns token 0 after stop(), which ends all waits until the next ask(). Any thread may call them.
    virtual Answers next(uint64_t token, int n) = 0;
    virtual void    stop()                      = 0;

    // Returns llama.cpp's callback (`cb_eval`, `cb_eval_user_data`) for a context that runs on the CPU alone, whose
    // FFNs are as wide as the target's. A context on the SPAC device needs none. The tap must outlive the context.
    virtual std::pair<uintptr_t, uintptr_t> callback() = 0;
};

std::shared_ptr<Tap> new_tap();

// A scope that binds a tap to a context: the one that is made on this thread while the scope lives. Scopes nest, and
// each is for one context.
class TapScope : NotCopied {
  public:
    explicit TapScope(std::shared_ptr<Tap> tap);
    ~TapScope();

  private:
    std::shared_ptr<Tap> outer_;
};

} // namespace spac
