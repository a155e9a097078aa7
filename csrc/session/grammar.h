// Grammars for llama.cpp's sampler.
#pragma once

#include <string>

namespace spac {

// Returns the grammar (GBNF) of all texts that fit a JSON schema. Throws InputError if there is none.
std::string grammar_of_schema(const std::string & schema);

} // namespace spac
