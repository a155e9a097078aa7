"""Measure the effects of the patches to llama.cpp on ggml itself, through its C interface."""
