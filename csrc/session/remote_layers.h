// Layers on RPC servers, as sessions and the loading of models need them.
#pragma once

#include <cstdint>
#include <string>

struct llama_context;

namespace spac {

// Returns why a server of the context's model is lost; empty if none is. Results that were computed since are void.
std::string remote_loss_of(const llama_context * ctx);

// Returns the address of llama_model_params.tensor_buft_overrides that keep the output matrix in host memory.
std::uintptr_t host_output();

} // namespace spac
