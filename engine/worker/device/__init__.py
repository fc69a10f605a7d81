"""The device of a worker: its memory, graphs, and copies to it."""
