"""Models and contexts of llama.cpp: this package checks them, fits them to the machine, and loads them."""
