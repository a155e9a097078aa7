#include "backend/gate.h"

#include "backend/stand_in.h"

#if defined(SPAC_WITH_CUDA)
#include "backend/cuda_gate.h"
#endif

namespace spac {

std::unique_ptr<Gate> make_gate(ggml_backend_t backend) {
    if (is_stand_in(backend)) {
        return stand_in_gate(backend);
    }
#if defined(SPAC_WITH_CUDA)
    return cuda_gate(backend); // null for other backends
#else
    return nullptr;
#endif
}

} // namespace spac
