"""Conversations to prompt text: a model's chat template, in its sandbox, and places of media."""
