"""Mixers of every kind split over ranks give the logits of the whole, and each keeps its part of what they keep."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from stentor.engine.layers.linear.rank_group import RankGroup
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.spec.model import ModelSpec, with_layers
from stentor.engine.model_config.spec.recurrent import Mamba2Spec
from stentor.engine.model_config.tensor_parallel.cuts import Rank
from stentor.engine.model_config.tensor_parallel.split import split_model
from stentor.engine.worker.families.family import Text
from stentor.engine.worker.setup.setup import open_family
from stentor.protocols.ipc.config import WorkerConfig
from stentor.tests.engine.loading.gguf_families import write_family
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, assert_close, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.parity.ranks import logits_of, on_each_rank
from stentor.tests.parity.tiny_adapters import merged, save_adapter

TWO = (
    *("deepseek-v3-dense", "deepseek-v3.2", "deepseek-v4", "hy-v4", "youtu", "kimi-linear", "ling", "glm5-next-seeing"),
    *("kimi-k3", "alice", "deepseek-v4.1"),
    *("qwen3-next-moe", "qwen3.5", "olmo-hybrid", "lfm2-biased"),
    *("granite4-hybrid", "nemotron-h", "falcon-h1-normed", "mamba2-biased"),
    *("falcon-mamba", "mamba-biased", "jamba-dense", "minimax", "recurrent-gemma"),
    *("olmo2", "cohere-normed", "gemma4-small", "mimo-v2-flash"),
    *("gpt2", "gpt-bigcode", "gpt-neox", "falcon-serial"),
)
FOUR = ("minicpm3", "qwen3-next", "qwen3.5", "granite4-hybrid", "nemotron-h", "olmo2", "falcon-grouped")
"""Those that have fewer than four of something that ranks then share: of key heads, groups of B and C, or heads that
norms see together."""


def check(path: Path, model: Any, size: int, *, packed: bool = False) -> None:
    found = logits_of(path, size, packed=packed)
    for seed, ours, length in zip((1, 2), found[0], (LENGTH, 40), strict=True):
        assert_close(ours, expected_logits(model, prompt_of(seed, length)))
    for other in found[1:]:
        assert all(map(torch.equal, other, found[0]))


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("packed", [False, True], ids=["called", "program"])
@pytest.mark.parametrize("name", TWO)
def test_two_ranks_give_the_logits_of_transformers(name: str, packed: bool, tmp_path: Path) -> None:
    check(tmp_path, tiny.make(name, tmp_path), 2, packed=packed)


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", FOUR)
def test_ranks_share_what_there_are_fewer_of(name: str, tmp_path: Path) -> None:
    check(tmp_path, tiny.make(name, tmp_path), 4)


@pytest.mark.parametrize("name", ["deepseek-v3-dense", "qwen3.5"])
def test_files_that_store_heads_in_an_order_of_their_own_are_split(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    write_family(tmp_path / "m.gguf", model, "qwen35" if name == "qwen3.5" else "deepseek2")
    whole = PagedDecoder(tmp_path / "m.gguf", packed=False)
    whole.add(0, prompt_of(1))
    (expected,) = whole.run((0, 0, LENGTH))
    for size in (2, 4):
        assert_close(logits_of(tmp_path / "m.gguf", size)[0][0], expected)


def test_names_that_a_file_shortens_are_found_before_they_are_cut(tmp_path: Path) -> None:
    model = tiny.make("gpt2", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({name.removeprefix("transformer."): each for name, each in load_file(file).items()}, file)
    check(tmp_path, model, 2)


ADAPTED = {
    "deepseek-v3-dense": ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
    "gpt2": ("c_attn", "c_fc", "c_proj"),
    "jamba-dense": ("in_proj", "x_proj", "dt_proj", "out_proj"),
    "qwen3-next": ("in_proj_qkvz", "in_proj_ba", "out_proj"),
}
"""By model: what its adapter changes."""


@pytest.mark.parametrize("name", sorted(ADAPTED))
def test_ranks_add_their_parts_of_an_adapter_to_their_parts_of_a_mixer(name: str, tmp_path: Path) -> None:
    model = tiny.make(name, tmp_path)
    added = save_adapter(model, tmp_path / "adapter", targets=ADAPTED[name], rank=2, size=0.15)
    assert added
    check_adapted(tmp_path, merged(model, added), tmp_path / "adapter")


def test_an_adapter_adds_to_heads_that_a_file_stores_in_turn(tmp_path: Path) -> None:
    model = tiny.make("qwen3.5", tmp_path)
    added = save_adapter(model, tmp_path / "adapter", targets=("out_proj",), rank=2, size=0.15)
    write_family(tmp_path / "m.gguf", model, "qwen35")
    check_adapted(tmp_path / "m.gguf", merged(model, added), tmp_path / "adapter")


def check_adapted(path: Path, model: Any, adapter: Path) -> None:
    def run(ranks: RankGroup) -> list[torch.Tensor]:
        ours = PagedDecoder(path, packed=False, ranks=ranks, max_lora_rank=2)
        ours.load(0, adapter)
        ours.add(0, prompt_of(1), adapter=0)
        return ours.run((0, 0, LENGTH))

    first, second = on_each_rank(2, run)
    assert_close(first[0], expected_logits(model, prompt_of(1)))
    assert torch.equal(first[0], second[0])


@pytest.mark.parametrize("name", ["jamba-dense", "lfm2", "nemotron-h", "qwen3-next"])
def test_a_rank_keeps_its_part_of_states(name: str, tmp_path: Path) -> None:
    whole, part = (spec_of(name, tmp_path, ranks) for ranks in (1, 2))
    assert part.states.keys() == whole.states.keys()
    assert 2 * part.state_bytes(2, 4) == whole.state_bytes(2, 4)


def test_ranks_keep_what_a_convolution_has_seen_of_groups_that_they_share(tmp_path: Path) -> None:
    whole, part = (spec_of("granite4-hybrid", tmp_path, ranks) for ranks in (1, 4))
    (convolved, state), (own_convolved, own_state) = whole.states[0], part.states[0]
    assert (convolved.shape[0], own_convolved.shape[0]) == (128 + 2 * 32, 128 // 4 + 2 * 16)
    assert (state.shape, own_state.shape) == ((8, 16, 16), (2, 16, 16))


def test_latents_and_keys_of_an_index_are_whole_in_each_rank(tmp_path: Path) -> None:
    tiny.make("deepseek-v3-dense", tmp_path)
    whole, part = (spec_of("deepseek-v3-dense", tmp_path, ranks) for ranks in (1, 2))
    assert part.cache_groups == whole.cache_groups


def test_groups_that_ranks_cannot_share_are_refused_in_one_line(tmp_path: Path) -> None:
    spec = spec_of("nemotron-h", tmp_path, 1)
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, Mamba2Spec)
    for changed, what in (
        (replace(mixer, norm_groups=3), "groups of a norm"),
        (replace(mixer, groups=3), "groups of B and C"),
    ):
        with pytest.raises(ConfigError, match=f"3 {what} do not divide among 2 workers"):
            split_model(with_layers(spec, mixer=changed), Rank(0, 2))


def spec_of(name: str, folder: Path, size: int) -> ModelSpec:
    """Of the first of so many ranks."""
    tiny.make(name, folder)
    family = open_family(WorkerConfig(str(folder), tensor_parallel_size=size), "cpu")
    assert isinstance(family, Text)
    return family.spec
