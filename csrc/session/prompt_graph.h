// How prompts are evaluated: the size of a context's graphs, and the routes of a prompt's last tokens.
//
// llama.cpp plans the compute buffers of a context for graphs of n_ubatch tokens. Larger graphs take fewer passes of
// the experts for a prompt, and more memory.
#pragma once

#include "backend/experts/experts.h"
#include "core/not_copied.h"

#include <cstddef>
#include <functional>
#include <map>
#include <string>

struct llama_context;

namespace spac {

// Returns the bytes that compute buffers for graphs of `n_tokens` take of each device, by its name. The context's
// memory and buffers stay as they are. Throws MemoryError if the buffers cannot be allocated again.
std::map<std::string, size_t> graph_bytes(llama_context * ctx, int n_tokens);

// Chooses the size of the graphs that evaluate prompts, chunk by chunk.
class PromptGraph {
  public:
    // The graphs that the context was made for are the small ones.
    explicit PromptGraph(llama_context * ctx);

    // Returns the tokens of the small graphs.
    int small() const { return small_; }
    // Returns the size for prompts with `n_pending` tokens to evaluate. `wish` is Listeners::prompt_graph, and may be
    // empty. The buffers become larger if it asks for that. Throws MemoryError if there is no memory even for the small
    // graphs.
    int choose(int n_pending, const std::function<int(int, int)> & wish);
    // Notes that there was no memory for the decode. Returns false if it had small graphs; otherwise the next choice
    // is a smaller one.
    bool fails();

  private:
    llama_context * ctx_;
    int             small_;
    int             graph_;       // the tokens of the graphs chosen last
    int             failing_ = 0; // the size that has just failed, or 0
    int             failed_  = 0; // the last size that failed, or 0
};

// While it lives, the experts note the routes of a graph's last `n` tokens; 0 for none.
class NotedTail : NotCopied {
  public:
    // Tokens at a prompt's end whose routes are shown to the listener: enough for a scheduler to see what comes now.
    static constexpr int route_tokens = 32;

    NotedTail(Experts * experts, int n) : experts_(n > 0 ? experts : nullptr) { set(n); }
    ~NotedTail() { set(0); }

  private:
    void set(int n) {
        if (experts_ != nullptr) {
            experts_->set_tail_tokens(n);
        }
    }
    Experts * experts_;
};

} // namespace spac
