"""What can go wrong with a model that hears, before and while it does."""


class TranscriptionModelError(Exception):
    """The model's folder is not what such a model needs; one line for the operator."""
