"""Voices that transformers' modelling code speaks, in float32 on the CPU: one module for each family."""
