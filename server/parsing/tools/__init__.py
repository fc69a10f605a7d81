"""Tool calls in a model's output: one file for each family of formats, on a few shared machines.

A format's parser is a generator over a :class:`~.reader.Reader` that yields when it needs more text, so it is written
as if the whole text were there. Its decisions depend on the text alone, never on where a push ended.
"""
