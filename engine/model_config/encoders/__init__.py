"""Encoders of text, and what a pooling model makes of hidden states."""
