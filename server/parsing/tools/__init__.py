"""Tool calls in a model's output: one file a family of formats, on a few shared machines.

A family's reading is a generator over a :class:`~.reader.Reader` that yields where it needs more text, so it is written
as if the whole text were there. What it decides depends on the text alone, never on where a push ended.
"""
