"""Anthropic's wire types: what a client may send, and what it gets back."""
