"""Nemotron Parse's encoder of pictures: transformers' C-RADIO (arXiv:2312.06709) and what makes its states fewer."""

from functools import cache
from typing import Any, Final

import torch

RADIO_WITH_NECK: Final = "RadioWithNeck"
_EPS: Final = 1e-6


@cache
def radio_with_neck() -> Any:
    """The class, with names as published. Its configuration is C-RADIO's, with ``neck_size``, numbers of a state, and
    ``neck_merge``, patches of a row that become one."""
    from transformers import RadioModel, RadioPreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput

    class RadioWithNeck(RadioPreTrainedModel):
        base_model_prefix = ""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            size, merge, inner = config.neck_size, config.neck_merge, config.hidden_size
            self.model_encoder = RadioModel(config)
            for layer in self.model_encoder.encoder.layer:  # files have no scales of layers
                layer.layer_scale1, layer.layer_scale2 = torch.nn.Identity(), torch.nn.Identity()
            self.conv1 = torch.nn.Conv1d(inner, size, 1)
            self.layer_norm1 = torch.nn.LayerNorm(size, _EPS)
            self.conv2 = torch.nn.Conv2d(size, size, (1, merge), (1, merge), bias=False)
            self.layer_norm2 = torch.nn.LayerNorm(size, _EPS)
            self.sum_proj = torch.nn.Linear(inner * len(config.summary_idxs), size)
            self.layer_norm3 = torch.nn.LayerNorm(size, _EPS)
            self.post_init()  # type: ignore[no-untyped-call]

        def forward(self, pixel_values: torch.Tensor, **_: Any) -> Any:
            """States of places, row by row, and behind them that of the whole picture, [pictures, states, size]."""
            seen = self.model_encoder(pixel_values)
            rows = pixel_values.shape[2] // self.config.patch_size
            places = self.layer_norm1(self.conv1(seen.features.transpose(1, 2)).transpose(1, 2))
            merged = self.conv2(places.unflatten(1, (rows, -1)).permute(0, 3, 1, 2))  # [pictures, size, rows, columns]
            places = self.layer_norm2(merged.flatten(2).transpose(1, 2))
            whole = self.layer_norm3(self.sum_proj(seen.summary))
            return BaseModelOutput(last_hidden_state=torch.cat((places, whole[:, None]), 1))

    return RadioWithNeck
