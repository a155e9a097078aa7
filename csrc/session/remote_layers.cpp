#include "session/remote_layers.h"

#include "../src/llama-model.h" // for a model's devices, which no public function returns
#include "backend/remote/remote_servers.h"

namespace spac {

std::string remote_loss_of(const llama_context * ctx) {
    for (const auto & device : llama_get_model(ctx)->devices) {
        if (std::string loss = remote_loss(device.dev); !loss.empty()) {
            return loss;
        }
    }
    return "";
}

} // namespace spac
