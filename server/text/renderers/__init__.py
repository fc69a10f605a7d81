"""Conversations to prompt tokens: one interface, and a renderer for each way that models are written to."""
