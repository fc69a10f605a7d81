"""Models that are fetched: from Hugging Face, and from Python packages."""
