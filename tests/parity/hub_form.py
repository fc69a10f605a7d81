"""The form of published files of families whose code comes with them, for :mod:`.hub`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

Tensors = dict[str, torch.Tensor]
Values = dict[str, Any]


class Published(NamedTuple):
    """How published files differ from transformers'."""

    architecture: str
    names: Mapping[str, str]
    """By parts of transformers' names, in order."""
    described: Callable[[Any], Values]
    """Fields of config.json besides sizes, which are Llama's."""
    stored: Callable[[Tensors, Any], Tensors] = lambda tensors, config: tensors
    """Changes tensors under transformers' names."""
    prepared: Callable[[Any], None] = lambda model: None
    """Changes the model."""


def old_rope(config: Any) -> Values:
    """The rotary settings in the spelling of files before transformers 5."""
    rope = dict(config.rope_parameters)
    theta = rope.pop("rope_theta")
    return {"rope_theta": theta, "rope_scaling": None if rope == {"rope_type": "default"} else rope}


def same(config: Any, *fields: str) -> Values:
    """Fields that published files have under the same names."""
    return {field: getattr(config, field) for field in fields}


def theta(config: Any) -> float:
    """The rotary base."""
    return float(config.rope_parameters["rope_theta"])


def joined_qkv(into: str = "query_key_value") -> Callable[[Tensors, Any], Tensors]:
    """Queries, keys and values as one matrix, named ``into``."""

    def join(tensors: Tensors, _config: Any) -> Tensors:
        found = {}
        for name, tensor in tensors.items():
            if "q_proj" in name:
                parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
                found[name.replace("q_proj", into)] = torch.cat(parts)
            elif "k_proj" not in name and "v_proj" not in name:
                found[name] = tensor
        return found

    return join
