"""Model files in the GGUF format: their header, checks, facts about the model, and its routers."""
