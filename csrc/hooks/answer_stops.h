// Where the stop strings of a request count: in its answer, and not in the reasoning before it (0006-server.patch).
#pragma once

#include "server-task.h"

#include <string>
#include <vector>

namespace spac {

// Returns the stop strings of a request, or none while its text is still reasoning, as llama.cpp's parser of the chat
// reads it. `generated` is the text so far, and `unsent` is its end, in which a stop string is looked for.
const std::vector<std::string> & counted_stops(const task_params & params, const std::string & generated,
                                               const std::string & unsent);

} // namespace spac
