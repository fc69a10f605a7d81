"""Models that transcribe, and encoder-decoders of text, whose decoder is theirs."""
