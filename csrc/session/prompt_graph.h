// How prompts are evaluated: the size of the graphs, chosen piece by piece, and the routes of a prompt's last tokens.
#pragma once

#include "backend/experts/experts.h"

#include <functional>

struct llama_context;

namespace spac {

class PromptGraph {
  public:
    // The graphs that the context was made for are the small ones.
    explicit PromptGraph(llama_context * ctx);

    // Begins a prompt: sizes that failed before may be chosen again.
    void begin() { failed_ = 0; }
    // Returns how many tokens the next decode has at most, of prompts with `n_pending` tokens to evaluate. `wish` is
    // Listeners::prompt_graph, and may be empty. The buffers become larger if it asks for that. Throws MemoryError if
    // there is no memory even for the small graphs.
    int choose(int n_pending, const std::function<int(int, int)> & wish);
    // Notes that there was no memory for the decode. Returns false if it had small graphs; otherwise the next choice
    // is a smaller one.
    bool fails();

    int  small() const { return small_; }  // tokens of a small graph
    int  tokens() const { return graph_; } // tokens of the graph chosen last
    bool is_large() const { return graph_ > small_; }

  private:
    llama_context * ctx_;
    int             small_;
    int             graph_;       // the tokens of the graphs chosen last
    int             failing_ = 0; // the size that has just failed, or 0
    int             failed_  = 0; // the last size that failed, or 0
};

// While it lives, the experts note the routes of a graph's last `n` tokens; 0 for none.
class NotedTail {
  public:
    // Tokens at a prompt's end whose routes are shown to the listener: enough for a scheduler to see what comes now.
    static constexpr int route_tokens = 32;

    NotedTail(Experts * experts, int n) : experts_(n > 0 ? experts : nullptr) { set(n); }
    ~NotedTail() { set(0); }
    NotedTail(const NotedTail &)             = delete;
    NotedTail & operator=(const NotedTail &) = delete;

  private:
    void set(int n) {
        if (experts_ != nullptr) {
            experts_->set_tail_tokens(n);
        }
    }
    Experts * experts_;
};

} // namespace spac
