"""GGUF files: reading them, the meaning of their tensors, and projector files."""
