"""Mixtures of experts."""
