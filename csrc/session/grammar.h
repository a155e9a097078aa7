// Grammars for llama.cpp's sampler: made from JSON schemas, and checked before its recursive parser sees them.
#pragma once

#include "core/not_copied.h"

#include <cstdint>
#include <string>

struct llama_vocab;

namespace spac {

// Returns the grammar (GBNF) of all texts that fit a JSON schema. Throws InputError if there is none, or if it exceeds
// a limit.
std::string grammar_of_schema(const std::string & schema);

// Throws InputError if llama.cpp cannot use a grammar (GBNF), or if its text or its rules exceed a limit. With `shows`,
// the message names the line and the column.
void check_grammar(const llama_vocab * vocab, const std::string & text, bool shows = true);

// Does the same for the llama_model at an address.
void check_grammar(std::uintptr_t model, const std::string & text);

// Bounds on the work of llama.cpp's grammars (grammar_work.cpp). Their stacks may multiply with every character, so a
// short grammar can take all memory or all time.
//
// While it lives, llama.cpp's grammars throw InputError in this thread where they fail. Without it, code in C or Python
// calls them, which no exception may cross. Then a grammar that fails allows nothing but an end, and
// take_grammar_fault() tells why.
class GrammarScope : NotCopied {
  public:
    GrammarScope();
    ~GrammarScope();

    // Returns the work since the scope began, about in nanoseconds.
    uint64_t work() const;

  private:
    uint64_t before_;
};

// A bound on the cost of one text's grammar: eight times that of a token, and 20 ms for each token beside.
class GrammarBudget {
  public:
    // Takes the work for some tokens from it.
    void spend(uint64_t work, size_t n_tokens);
    // Throws InputError if nothing is left.
    void check(const llama_vocab * vocab) const;

  private:
    uint64_t work_ = 0; // in nanoseconds
};

// Returns what was wrong with a grammar outside of a scope since the last call in this thread; "" for nothing.
std::string take_grammar_fault();

} // namespace spac
