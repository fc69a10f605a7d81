"""Speech: text in pieces that are short enough to begin early, spoken in turn for all who ask."""
