"""What can be wrong with a transcription model."""

from stentor.engine.loading.errors import CheckpointError


class TranscriptionModelError(CheckpointError):
    """The model's folder is not what such a model needs; one line for the operator."""
