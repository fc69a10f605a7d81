"""Media of requests: fetching, decoding, and processing for models."""
