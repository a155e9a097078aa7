"""Compare spac and llama.cpp side by side, in one run, at equal VRAM (README.md)."""
