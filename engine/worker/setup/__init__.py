"""From a model and options to a worker that is ready: memory, caches, warm-up."""
