"""Parses a model's output while it is generated: answer, reasoning and tool calls."""
