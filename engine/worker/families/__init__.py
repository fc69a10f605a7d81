"""What differs between decoders, pooling models, and models that see or transcribe."""
