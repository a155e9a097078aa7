"""This package runs llama-cpp-python's `Llama` on spac's engine; `enable()` does so for other programs."""
