"""What a session remembers: its state, settings, items, and how much of an answer was heard."""
