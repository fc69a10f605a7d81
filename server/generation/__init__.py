"""Turns a conversation into typed deltas, for every protocol."""
