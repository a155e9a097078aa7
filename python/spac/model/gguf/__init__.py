"""Model files: the GGUF header, what is checked in it, what it tells of the model, and its routers."""
