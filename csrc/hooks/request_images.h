// Checks of the images in requests to llama.cpp's server.
//
// The linker's --wrap leads its calls here (csrc/CMakeLists.txt). They come from the threads that answer requests.
#pragma once

namespace spac {

// Sets the most tokens of an image that a model evaluates at once, as with attention to later places; 0: no limit.
void set_image_limit(int n_tokens);

} // namespace spac
