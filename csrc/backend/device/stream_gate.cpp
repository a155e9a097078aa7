#include "backend/device/stream_gate.h"

#include "backend/device/capabilities.h"

#if defined(SPAC_WITH_CUDA)
#include "backend/device/cuda_stream_gate.h"
#endif

namespace spac {

std::unique_ptr<Gate> make_gate(ggml_backend_t backend) {
    if (StreamExtension * const extension = extension_of(backend)) {
        return extension->make_gate();
    }
#if defined(SPAC_WITH_CUDA)
    return cuda_gate(backend); // returns null for other backends
#else
    return nullptr;
#endif
}

} // namespace spac
