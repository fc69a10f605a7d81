"""From a conversation that some protocol brings to the deltas of its answer."""
