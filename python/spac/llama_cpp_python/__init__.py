"""llama-cpp-python's `Llama` on spac's engine, and `enable()`, which gives it to other people's programs."""
