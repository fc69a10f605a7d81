"""The worker process, which owns a device: weights, KV cache, model runner, sampler."""
