// This header has the news that the reader of a text of this process gets.
#pragma once

#include "session/parallel.h"

#include <utility>
#include <vector>

namespace spac {

struct TextNews {
    std::vector<SequenceStep>        steps;
    std::vector<std::pair<int, int>> progress; // tokens of the prompt that are done, and those of them from the memory
    bool                             is_over    = false; // true: the loop has ended the text by itself
    bool                             is_stopped = false; // true: it was cancelled, or the loop is closed
};

} // namespace spac
