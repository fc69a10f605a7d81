"""Text to tokens and back: vocabularies of every file format, and incremental detokenisation."""
