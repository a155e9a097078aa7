"""What our patches to llama.cpp do, measured on ggml itself, through its C interface."""
