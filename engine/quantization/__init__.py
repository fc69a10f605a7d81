"""Quantised weights: stored formats, the choice of a kernel, and the stored tensors' meaning.

:mod:`.formats` and :mod:`.parse` are torch-free; the others belong to the worker.
"""
