"""Quantised weights: what checkpoints hold, which kernel takes it, and the layers that multiply by it.

:mod:`.formats` and :mod:`.parse` are torch-free; the others belong to the worker.
"""
