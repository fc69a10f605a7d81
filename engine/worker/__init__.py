"""The process that owns a device: weights, KV cache, model runner, sampler."""
