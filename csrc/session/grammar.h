// Grammars for llama.cpp's sampler: made from JSON schemas, and checked before its recursive parser sees them.
#pragma once

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

} // namespace spac
