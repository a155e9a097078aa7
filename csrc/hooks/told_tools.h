// Tools for chat templates that know none: a system message tells the model of them, and of the form of a call.
#pragma once

#include "chat.h"

#include <functional>

namespace spac {

using ApplyTemplate = std::function<common_chat_params(const common_chat_templates_inputs & inputs)>;

// Returns the prompt of a chat with tools. `apply` is llama.cpp's function for one without. Calls, results and the list
// of tools become text, and the parser and the grammar read calls between <tool_call> and </tool_call>.
common_chat_params with_told_tools(common_chat_templates_inputs inputs, const ApplyTemplate & apply);

} // namespace spac
