// Layers on RPC servers, as sessions need them.
#pragma once

#include <string>

struct llama_context;

namespace spac {

// Returns why a server of the context's model is lost; empty if none is. Results that were computed since are void.
std::string remote_loss_of(const llama_context * ctx);

} // namespace spac
