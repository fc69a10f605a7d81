"""Anthropic's wire types: requests and responses."""
