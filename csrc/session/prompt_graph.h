// The size of the graphs that evaluate prompts, chosen piece by piece.
#pragma once

#include <functional>

struct llama_context;

namespace spac {

class PromptGraph {
  public:
    // The graphs that the context was made for are the small ones.
    explicit PromptGraph(llama_context * ctx);

    // Returns how many tokens the next decode has at most, of prompts with `n_pending` tokens to evaluate. `wish` is
    // Listeners::prompt_graph, and may be empty. The buffers become larger if it asks for that. Throws MemoryError if
    // there is no memory even for the small graphs.
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

} // namespace spac
