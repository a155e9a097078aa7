// Tells which llama.cpp this library holds. Tests ask whether everybody in the process uses the same one.
#pragma once

#include <cstdint>
#include <string>

namespace spac {

// Returns the address of llama_decode, as calls from inside the library reach it.
std::uintptr_t llama_decode_address();

// Return ggml's version, and llama.cpp's system information: the instruction sets and backends compiled in.
std::string ggml_version_text();
std::string system_info();

} // namespace spac
