"""Responses: items of a request become turns of the model; stored state, and events."""
