"""Speech synthesis: text is split into pieces, short ones first, and callers take turns."""
