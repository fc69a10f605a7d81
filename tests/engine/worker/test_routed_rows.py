"""The experts of positions, as requests get them."""

from typing import Any

import pytest

from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.rows.routed_rows import expert_shape
from stentor.protocols.ipc.steps import ExpertShape
from stentor.tests.parity import tiny


def described(model: str, **changes: Any) -> dict[str, Any]:
    return {**tiny.described(model), **changes}


@pytest.mark.parametrize(("experts", "width"), [(256, 1), (257, 2)])
def test_the_number_of_an_expert_has_as_many_bytes_as_the_last_one_needs(experts: int, width: int) -> None:
    spec = model_spec_from_hf(described("qwen3-moe", num_local_experts=experts, num_experts_per_tok=3))
    mixtures = sum(hasattr(layer.mlp, "router") for layer in spec.layers)
    assert mixtures > 0
    assert expert_shape(spec) == ExpertShape(mixtures, 3, width)


def test_a_model_without_experts_has_none_to_return() -> None:
    with pytest.raises(SetupError, match="the model has no experts that are known; leave it out"):
        expert_shape(model_spec_from_hf(described("llama")))
