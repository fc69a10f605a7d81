"""Cohere's API for chat. Its endpoint for vectors is with the others, in :mod:`..pooling.cohere`."""
