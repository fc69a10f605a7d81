"""Encoder-decoders from text to text against transformers: tiny random ones of every kind of shape."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from stentor.engine.model_config.seq2seq.text import TextToTextConfig
from stentor.tests.parity.encoder_decoder_checks import (
    check_bfloat16,
    check_decoder,
    check_encoder,
    check_greedy,
    outputs_from,
)
from stentor.tests.parity.translators import KINDS, VOCAB, encoded, logits_of
from stentor.tests.parity.whispers import PagedEncoderDecoder

TEXTS = [[5, 9, 33, 150, 7, 3], [11, 3], [(7 * place + 3) % (VOCAB - 10) + 5 for place in range(45)]]


WINDOWS = [encoded(text) for text in TEXTS]


class Pair:
    def __init__(self, kind: str, folder: Path) -> None:
        self.folder, self.model = folder, KINDS[kind]()
        self.model.save_pretrained(folder)

    def logits(self, row: int, tokens: Sequence[int]) -> torch.Tensor:
        return logits_of(self.model, TEXTS[row], tokens)


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(request.param, tmp_path_factory.mktemp("seq2seq"))


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_encoder_and_decoder_are_transformers(pair: Pair, packed: bool) -> None:
    ours = PagedEncoderDecoder(pair.folder, packed=packed)
    with torch.inference_mode():
        expected = [pair.model.get_encoder()(torch.tensor([text])).last_hidden_state[0] for text in TEXTS]
    check_encoder(ours, WINDOWS, expected)
    check_decoder(ours, WINDOWS, pair.logits, outputs_from(2))


@pytest.mark.parametrize("kind", ["longt5", "switch", "t5gemma2"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_bfloat16_is_as_near_float32_as_transformers_is(kind: str, packed: bool, tmp_path: Path) -> None:
    pair = Pair(kind, tmp_path)
    ours = PagedEncoderDecoder(tmp_path, dtype=torch.bfloat16, packed=packed)
    check_bfloat16(ours, WINDOWS, pair.logits, pair.model.bfloat16)


def test_a_long_text_is_encoded_in_parts_as_transformers_does(tmp_path: Path) -> None:
    model, ours = Pair("longt5", tmp_path).model, PagedEncoderDecoder(tmp_path)
    text = [(7 * place + 3) % (VOCAB - 10) + 5 for place in range(2399)]
    with torch.inference_mode():
        found = ours.model.encoder([encoded(text)]).rows
        expected = model.get_encoder()(torch.tensor([text])).last_hidden_state[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_greedy_tokens_are_transformers(pair: Pair) -> None:
    ours = PagedEncoderDecoder(pair.folder)
    assert isinstance(ours.config, TextToTextConfig)
    check_greedy(ours, WINDOWS, pair.logits, ours.config.decoder_start, 24)
