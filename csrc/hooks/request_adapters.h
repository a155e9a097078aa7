// The scales of adapters in requests to llama.cpp's server that name none.
//
// The server keeps what a slot holds when a request without scales follows one with other scales, though it was
// computed with those. So each request gets scales here. The linker's --wrap leads llama.cpp's parser here
// (csrc/CMakeLists.txt).
#pragma once

#include <string>
#include <vector>

namespace spac {

// Sets the scales of a request that names none; empty without adapters.
void set_adapter_scales(const std::vector<float> & scales);
// Sets them as the body of a request to /lora-adapters does. llama.cpp has accepted it.
void set_adapter_scales(const std::string & body);

} // namespace spac
