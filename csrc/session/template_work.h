// Limits of the work that a chat template does. Templates come with models, and are programs.
#pragma once

#include <functional>
#include <string>

namespace spac {

// Calls a function that reads or runs templates, on a stack that holds their recursion, with limits of time and memory.
// Throws InputError, which says what the template does too much of, also if the function hides the fault.
void within_template_limits(const std::function<void()> & call);

// Throws InputError for a template that is too long to be read.
void check_template_length(const std::string & source);

} // namespace spac
