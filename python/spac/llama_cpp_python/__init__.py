"""llama-cpp-python's `Llama` on spac's engine. `enable()` gives it to programs that do not know spac."""
