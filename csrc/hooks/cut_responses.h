// Answers of OpenAI's Responses that ended at a limit.
#pragma once

#include "server-task.h"

namespace spac {

// Lets a result of Responses say that its limit ended it, as OpenAI's do. llama.cpp's JSON says "completed".
void tell_cut_response(server_task_result_ptr & result);

} // namespace spac
