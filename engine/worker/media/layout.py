"""What a model's prompts do with media, for :class:`.rows.MediaRows`."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import torch

from ...model_config.towers.media_spec import MediaAxes


class MediaLayout(msgspec.Struct, frozen=True):
    """How media stand in a model's prompts, and what attends to them."""

    placeholders: Sequence[int]
    """Ids of the tokens that embeddings replace."""
    hidden: int
    """Width of an embedding."""
    mrope: bool = False
    """Media tokens have m-rope positions, along :attr:`axes`."""
    axes: MediaAxes = "grid"
    canvas: Sequence[int] = ()
    """:attr:`...model_config.towers.media_spec.MediaSpec.canvas`."""
    sees_whole: bool = False
    """The tokens of a picture attend to each other."""
    whole_prompts: bool = False
    """With :attr:`sees_whole`, all tokens of a prompt attend to each other."""
    marks: Sequence[int] | None = None
    """Tokens of a prompt whose experts are those of media too, or chosen as for media; None: those of all tokens are
    the same, and chosen alike."""
    joined: Sequence[int] | None = None
    """With :attr:`sees_whole`, tokens around media that attend to each other and to all media of a prompt, as these do;
    None: a medium attends to itself."""
    added: bool = False
    """See :attr:`...layers.forward_batch.MediaBatch.added`."""


class MediaReader(msgspec.Struct, frozen=True):
    """What the text model does with media."""

    place: Callable[[torch.Tensor], int]
    """:meth:`...models.decoder.Decoder.place_media`."""
    embed: Callable[[torch.Tensor], torch.Tensor] | None = None
    """:meth:`...models.decoder.Decoder.embedded`, if there is a decoder."""
    keys: Callable[[torch.Tensor], Mapping[int, torch.Tensor]] | None = None
    """:meth:`...models.decoder.Decoder.keys_of_media`, if tokens attend to media; None: embeddings of media stand in
    place of tokens."""
    given: Callable[[torch.Tensor], torch.Tensor] | None = None
    """:meth:`...models.decoder.Decoder.given`, if prompts may bring embeddings."""
