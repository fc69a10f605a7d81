"""GGUF files of families with experts, latents or states agree with transformers in float32, however the work is cut."""

from pathlib import Path
from typing import Any

import pytest

from stentor.tests.engine.loading.gguf_families import write_family
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import check_cut, check_shared, check_whole
from stentor.tests.parity.paged import PagedDecoder

MODELS = {
    "gpt-oss": "gpt-oss",
    "qwen3-next-moe": "qwen3next",
    "qwen3.5": "qwen35",
    "qwen3.5-moe": "qwen35moe",
    "deepseek-v2": "deepseek2",
    "deepseek-v3": "deepseek2",
    "deepseek-v3-dense": "deepseek2",
}
"""The names that llama.cpp has for the architectures of :data:`.tiny.ARCHITECTURES`."""


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    config = tiny.ARCHITECTURES[request.param]()
    rope = config.rope_parameters
    if "mscale_all_dim" in rope:
        rope["mscale"] = rope["mscale_all_dim"]  # of which files keep one
    model = tiny.make_of(config, request.param, folder)
    path = folder / "m.gguf"
    write_family(path, model, MODELS[request.param])
    return model, path


def test_a_prompt_of_a_gguf_file_gives_transformers_logits(pair: tuple[Any, Path]) -> None:
    check_whole(pair[0], PagedDecoder(pair[1]))


def test_chunks_decodes_and_neighbours_change_nothing_of_a_gguf_file(pair: tuple[Any, Path]) -> None:
    check_cut(pair[0], PagedDecoder(pair[1]))


def test_a_call_an_operation_gives_the_logits_of_a_gguf_file_too(pair: tuple[Any, Path]) -> None:
    check_whole(pair[0], PagedDecoder(pair[1], packed=False))


def test_prefixes_of_a_gguf_file_are_shared(pair: tuple[Any, Path]) -> None:
    check_shared(pair[0], PagedDecoder(pair[1]))
