"""What can be wrong with a model that makes vectors or scores."""

from stentor.engine.loading.errors import CheckpointError


class EmbeddingModelError(CheckpointError):
    """The model's folder is not what such a model needs; one line for the operator."""
