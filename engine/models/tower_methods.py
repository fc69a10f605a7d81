"""What encodes media where transformers' class of a model has no method for that: its whole pass does it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

Method = Callable[..., torch.Tensor]


def qwen2_audio(model: Any, input_features: torch.Tensor, feature_attention_mask: torch.Tensor) -> torch.Tensor:
    """[embeddings, hidden] of sounds that are filled up to a window each: what fills them up is not seen."""
    from transformers.masking_utils import create_bidirectional_mask

    inner = model.model
    tower = inner.audio_tower
    steps, counts = tower._get_feat_extract_output_lengths(feature_attention_mask.sum(-1))
    seen = _first(steps, (input_features.shape[-1] - 2) // 2 + 1)
    # only its shape is looked at
    like = input_features.new_zeros(*seen.shape, 1)
    mask = create_bidirectional_mask(config=tower.config, inputs_embeds=like, attention_mask=seen.long())
    found = inner.multi_modal_projector(tower(input_features, attention_mask=mask).last_hidden_state)
    kept: torch.Tensor = found[_first(counts, found.shape[1])]
    return kept


def _first(counts: torch.Tensor, length: int) -> torch.Tensor:
    """[rows, length]: so many of each row."""
    return torch.arange(length, device=counts.device) < counts[:, None]


METHODS: Final[Mapping[tuple[str, str], Method]] = {
    ("Qwen2AudioForConditionalGeneration", "audio"): qwen2_audio,
}
"""By the name of the class, and the modality."""
