"""The sequences of a step, and what belongs to each of them."""
