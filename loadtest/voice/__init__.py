"""Benchmarks of transcription and realtime voice, beside faster-whisper with the same weights in the same run."""
