// Which llama.cpp this library holds: for tests that ask whether everybody in the process means the same one.
#pragma once

#include <cstdint>
#include <string>

namespace spac {

// The address of llama_decode, as calls from inside the library reach it.
std::uintptr_t llama_decode_address();

// ggml's version and llama.cpp's system information: instruction sets and backends compiled in.
std::string ggml_version_text();
std::string system_info();

} // namespace spac
