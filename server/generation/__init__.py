"""From a conversation, whatever protocol brought it, to typed deltas."""
