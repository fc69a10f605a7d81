"""What a model writes, taken apart while it comes: its answer, its reasoning and its tool calls."""
