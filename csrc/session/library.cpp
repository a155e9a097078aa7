#include "session/library.h"

#include "ggml.h"
#include "llama.h"

namespace spac {

std::uintptr_t llama_decode_address() { return reinterpret_cast<std::uintptr_t>(&llama_decode); }

std::string ggml_version_text() { return ggml_version(); }

std::string system_info() { return llama_print_system_info(); }

} // namespace spac
