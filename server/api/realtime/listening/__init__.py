"""A caller's audio: its buffer, turns of speech, and their transcripts while they are spoken."""
