// A grammar's text, as llama.cpp's parser reads it.
#pragma once

#include <cstddef>
#include <string>

namespace spac {

// A fault of a grammar, at `offset` of its text.
struct GrammarFault {
    std::string what;
    size_t      offset;
};

std::string over_limit(size_t n, const char * what);

// Throws a GrammarFault for a text that llama.cpp's parser would accept in spite of a fault, or not survive.
void read_grammar_text(const std::string & text);

} // namespace spac
