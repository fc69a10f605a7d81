"""Models that transcribe: encoder-decoders and those that label frames."""
