// Bounds on the work of llama.cpp's grammars. Their stacks may multiply with every character, so a short grammar can
// take all memory or all time.
#pragma once

#include <cstdint>
#include <string>

namespace spac {

// While it lives, llama.cpp's grammars throw InputError in this thread where they fail. Without it, code in C or Python
// calls them, which no exception may cross. Then a grammar that fails allows nothing but an end, and
// take_grammar_fault() tells why.
class GrammarScope {
  public:
    GrammarScope();
    ~GrammarScope();
    GrammarScope(const GrammarScope &)             = delete;
    GrammarScope & operator=(const GrammarScope &) = delete;

    // Returns the work since the scope began, about in nanoseconds.
    uint64_t work() const;

  private:
    uint64_t before_;
};

// Returns what was wrong with a grammar outside of a scope since the last call in this thread; "" for nothing.
std::string take_grammar_fault();

} // namespace spac
