"""Encoder-decoders from a picture to text against transformers: tiny random ones of every kind of shape."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor.engine.model_config.seq2seq.text import TextToTextConfig
from stentor.tests.parity.encoder_decoder_checks import (
    check_bfloat16,
    check_decoder,
    check_encoder,
    check_greedy,
    outputs_from,
)
from stentor.tests.parity.pictured import KINDS, READING, encoded_by, logits_of, picture, window
from stentor.tests.parity.whispers import PagedEncoderDecoder

TEXTS = [[5, 9, 33, 150, 7, 3], [11], []]


class Pair:
    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.model = kind, folder, KINDS[kind]()
        self.model.save_pretrained(folder)
        self.pictures = [picture(kind, seed) for seed in range(3)]
        self.texts = TEXTS if kind in READING else [[], [], []]
        self.windows = [window(kind, *each) for each in zip(self.pictures, self.texts, strict=True)]

    def logits(self, row: int, tokens: Sequence[int]) -> torch.Tensor:
        return logits_of(self.model, self.kind, self.pictures[row], self.texts[row], tokens)


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp("pictured"))


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_encoder_and_decoder_are_transformers(pair: Pair, packed: bool) -> None:
    ours = PagedEncoderDecoder(pair.folder, packed=packed)
    expected = [encoded_by(pair.model, pair.kind, *each)[0] for each in zip(pair.pictures, pair.texts, strict=True)]
    check_encoder(ours, pair.windows, expected)
    check_decoder(ours, pair.windows, pair.logits, outputs_from(2))


@pytest.mark.proof(each="pair")
def test_greedy_tokens_are_transformers(pair: Pair) -> None:
    ours = PagedEncoderDecoder(pair.folder)
    assert isinstance(ours.config, TextToTextConfig)
    check_greedy(ours, pair.windows, pair.logits, ours.config.decoder_start, 12)


_OLDER = {
    r"^encoder\.layers\.(\d+)\.": r"encoder.encoder.layer.\1.",
    r"attention\.q_proj": "attention.attention.query",
    r"attention\.k_proj": "attention.attention.key",
    r"attention\.v_proj": "attention.attention.value",
    r"attention\.o_proj": "attention.output.dense",
    r"mlp\.fc1": "intermediate.dense",
    r"mlp\.fc2": "output.dense",
}
"""Names of ViT's tensors in older files, by those of transformers 5."""


def test_files_of_older_versions_are_read(tmp_path: Path) -> None:
    pair = Pair("trocr", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for now, before in _OLDER.items():
        at_encoder = ((re.sub(now, before, name) if name.startswith("encoder.") else name) for name in tensors)
        tensors = dict(zip(at_encoder, tensors.values(), strict=True))
    assert "encoder.encoder.layer.1.attention.attention.query.weight" in tensors
    pooler = {f"encoder.pooler.dense.{which}": torch.ones(3) for which in ("weight", "bias")}
    save_file({**tensors, **pooler}, file, {"format": "pt"})
    ours = PagedEncoderDecoder(tmp_path)
    ours.listen(pair.windows)
    for row, made in enumerate(ours.step([[2, 5, 7]] * 3)):
        torch.testing.assert_close(made, pair.logits(row, [2, 5, 7]), atol=3e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["trocr", "donut", "florence", "parse", "patches"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_bfloat16_is_as_near_float32_as_transformers_is(kind: str, packed: bool, tmp_path: Path) -> None:
    pair = Pair(kind, tmp_path)
    ours = PagedEncoderDecoder(tmp_path, dtype=torch.bfloat16, packed=packed)

    def round_theirs() -> None:
        pair.model.bfloat16()
        pair.pictures = [pixels.bfloat16() for pixels in pair.pictures]

    check_bfloat16(ours, pair.windows, pair.logits, round_theirs)


def test_published_files_of_blip_have_the_head_and_numbers_of_positions_too(tmp_path: Path) -> None:
    pair = Pair("captions", tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    head = "text_decoder.cls.predictions."
    tied = {
        f"{head}decoder.weight": tensors["text_decoder.bert.embeddings.word_embeddings.weight"].clone(),
        f"{head}decoder.bias": tensors[f"{head}bias"].clone(),
        "text_decoder.bert.embeddings.position_ids": torch.arange(64)[None],
    }
    save_file({**tensors, **tied}, file, {"format": "pt"})
    ours = PagedEncoderDecoder(tmp_path)
    ours.listen(pair.windows)
    for row, made in enumerate(ours.step([[2, 5, 7]] * 3)):
        torch.testing.assert_close(made, pair.logits(row, [2, 5, 7]), atol=3e-4, rtol=1e-4)
