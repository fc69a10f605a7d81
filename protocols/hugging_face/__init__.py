"""The endpoints of Hugging Face's servers: Text Generation Inference, Text Embeddings Inference."""
