// The answers of llama.cpp's handlers to a request.
#pragma once

#include "hooks/request_settings.h"
#include "hooks/running.h"
#include "hooks/server_loop.h"

#include "server-context.h"

#include <memory>

namespace spac {

// Returns what llama-server answers where a handler throws.
server_http_res_ptr error_response(const char * message, error_type type);

// Returns the answer of a handler, which has to outlive it. The answer may outlive the server.
std::unique_ptr<LoopResponse> make_response(const LoopRequest & request, const server_http_context::handler_t & handler,
                                            std::shared_ptr<RequestSettings> settings,
                                            std::shared_ptr<Running>         running);

} // namespace spac
