"""A model's configuration, read from config.json or GGUF metadata, and the shapes of its weights. Torch-free."""
