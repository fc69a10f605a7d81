"""Models that transcribe."""
