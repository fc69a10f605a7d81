"""Files of the families before Llama: names and masks of old ones, weights quantised while they load, adapters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.engine.layers.linear.adapters import AdapterPlaces
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.models.decoder import Decoder
from stentor.server.main.architectures import described
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, assert_close, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder

BASES = {"opt": "model.", "gpt2": "transformer.", "gpt-neox": "gpt_neox.", "bloom": "transformer."}
"""What names begin with that old files leave out."""

ARCHITECTURES = {
    **{"gpt2": "GPT2LMHeadModel", "gpt-bigcode": "GPTBigCodeForCausalLM"},
    **{"gptj": "GPTJForCausalLM", "falcon": "FalconForCausalLM"},
}


@pytest.fixture(scope="module", params=BASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return request.param, tiny.make(request.param, folder), folder


def _logits(ours: PagedDecoder, prompt: list[int]) -> torch.Tensor:
    ours.add(0, prompt)
    return ours.run((0, 0, LENGTH))[0]


def test_names_may_lack_what_all_begin_with_and_masks_may_lie_beside_weights(
    made: tuple[str, Any, Path], tmp_path: Path
) -> None:
    name, model, folder = made
    stored = {
        each.removeprefix(BASES[name]): weight for each, weight in load_file(folder / "model.safetensors").items()
    }
    if name in ("gpt2", "gpt-neox"):
        layer = {"gpt2": "h.0.attn", "gpt-neox": "layers.0.attention"}[name]
        stored |= {f"{layer}.bias": torch.ones(1, 1, 8, 8).bool(), f"{layer}.masked_bias": torch.tensor(-1e4)}
    if name == "gpt-neox":
        stored["layers.0.attention.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    prompt = prompt_of(6)
    assert_close(_logits(PagedDecoder(tmp_path), prompt), expected_logits(model, prompt))


def test_weights_are_quantised_while_they_load(made: tuple[str, Any, Path]) -> None:
    _, model, folder = made
    prompt = prompt_of(6)
    expected = expected_logits(model, prompt)
    error = (_logits(PagedDecoder(folder, dtype=torch.bfloat16, quantization="int8"), prompt) - expected).abs()
    assert 0 < (error / expected.std()).mean() < 0.05


@pytest.mark.parametrize(("name", "longest"), [("gpt2", 1024), ("gpt-bigcode", 1024), ("gptj", 2048), ("falcon", 2048)])
def test_a_file_without_its_longest_context_has_that_of_its_family(name: str, longest: int) -> None:
    fields = {**tiny.ARCHITECTURES[name]().to_dict(), "architectures": [ARCHITECTURES[name]]}
    for field in ("n_positions", "max_position_embeddings"):
        fields.pop(field, None)
    assert model_spec_from_hf(fields).max_position == longest


@pytest.mark.parametrize(
    ("architecture", "adapted", "left_alone"),
    [
        ("GPT2LMHeadModel", "transformer.h.0.attn.c_attn", "transformer.h.0.ln_1"),
        ("GPTNeoXForCausalLM", "gpt_neox.layers.0.attention.dense", "gpt_neox.layers.0.attention.query_key_value"),
    ],
)
def test_adapters_have_a_place_at_what_lies_as_they_do(architecture: str, adapted: str, left_alone: str) -> None:
    places = AdapterPlaces()
    context = LayerContext(torch.device("cpu"), torch.float32, False, shapes_only=True, adapters=places)
    Decoder(described(architecture), context, 1)
    assert adapted in places.by_name
    assert left_alone not in places.by_name
