"""A step through the model: its inputs, its graphs, the call."""
