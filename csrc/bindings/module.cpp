// The module spac._core, as a list of its bindings.
#include "bindings/bindings.h"

PYBIND11_MODULE(_core, m) {
    m.doc() = "The mechanism of spac: devices, experts, sessions.";
    bind_errors(m);
    bind_library(m);
    bind_llama(m);
    bind_kernels(m);
    bind_devices(m);
    bind_remote(m);
    bind_trace(m);
    bind_huge_pages(m);
    bind_threads(m);
    bind_experts(m);
    bind_tap(m);
    bind_slot_table(m);
    bind_logistic(m);
    bind_chat_format(m);
    bind_projector(m);
    bind_session(m);
    bind_parallel(m);
}
