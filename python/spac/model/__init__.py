"""Models and contexts of llama.cpp: checked, fitted to the machine, loaded, and closed."""
