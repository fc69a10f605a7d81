"""Responses: from a request's items to a run of the model, and what is kept of it."""
