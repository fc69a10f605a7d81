"""Tiny models of a decoder of transformers and a module of our own, saved under the names that published files have."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from stentor.tests.parity.pictures import Kind
from stentor.tests.support.vision_models import Maker


class Published(NamedTuple):
    model_type: str
    make: Maker
    kind: Kind
    architecture: str = ""
    """If several have the model type, and it is not the usual one."""


def within(part: str) -> Callable[[str], str]:
    """Names of a decoder whose body is a part of ``model``, beside the head."""
    return lambda name: f"model.{part}.{name.removeprefix('model.')}" if name.startswith("model.") else name


class Composed(torch.nn.Module):
    """A decoder of transformers', and a module that makes embeddings of media, as a model of both."""

    def __init__(self, text: Any, tower: torch.nn.Module, placeholder: int) -> None:
        super().__init__()
        self.text, self.tower, self.placeholder = text, tower, placeholder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, use_cache: bool, **media: Any) -> Any:
        embeddings = self.text.get_input_embeddings()(input_ids)
        if media:
            embeddings[input_ids == self.placeholder] = self.tower(**media)
        return self.text(inputs_embeds=embeddings, attention_mask=attention_mask, use_cache=use_cache)

    def save(
        self, folder: Path, config: Mapping[str, object], text: str | Callable[[str], str], names: Callable[[str], str]
    ) -> None:
        """``text``: before the names of the decoder, or what its tensor is stored under; ``names``: of the tower's."""
        tensors = {
            f"{text}{name}" if isinstance(text, str) else text(name): tensor
            for name, tensor in self.text.state_dict().items()
        }
        tensors |= {names(name): tensor for name, tensor in self.tower.state_dict().items()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
