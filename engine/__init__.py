"""The engine: scheduler, KV cache, workers and models. Independent of any client protocol."""
