"""A tiny Qwen3.5 all of whose layers attend: gated attention, norms of (1 + weight), part of each head rotating.

The model is transformers' own; what reads its configuration is here, for no reader of the engine knows such a model.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import transformers as untyped_transformers

from stentor.engine.model_config import registry
from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.hf_common import common
from stentor.engine.model_config.model_spec import ModelSpec, with_mixers

transformers: Any = untyped_transformers
NAME, MODEL_TYPE = "Qwen3_5ForCausalLM", "qwen3_5_text"


def config(shape: Mapping[str, Any]) -> Any:
    layers = ["full_attention"] * shape["num_hidden_layers"]
    return transformers.Qwen3_5TextConfig(**shape, head_dim=32, layer_types=layers)


def _read(config: Mapping[str, object], _generation: Mapping[str, object]) -> ModelSpec:
    spec = replace(common(Fields(config), NAME), norm_plus_one=True)
    return with_mixers(spec, gated=True, qk_norm="head")


@contextmanager
def readable() -> Iterator[None]:
    """Such a model can be opened meanwhile, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ARCHITECTURES, NAME, registry.Architecture(MODEL_TYPE, _read))
        yield
