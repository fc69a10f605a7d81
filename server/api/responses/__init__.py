"""Responses: a request's items become a run of the model; what is kept of it, and its events."""
