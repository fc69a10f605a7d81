"""Models that transformers' modules compute."""
