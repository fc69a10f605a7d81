"""What vectors cost: beside sentence-transformers, for one who waits, and for those who chat on the same device."""
