"""Encoder-decoders from text to text against transformers: tiny random ones of every kind of shape."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.model_config.seq2seq.text import TextToTextConfig
from stentor.tests.parity.translators import KINDS, VOCAB, encoded, logits_of
from stentor.tests.parity.whispers import PagedEncoderDecoder

TEXTS = [[5, 9, 33, 150, 7, 3], [11, 3], [(7 * place + 3) % (VOCAB - 10) + 5 for place in range(45)]]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    model = KINDS[request.param]()
    folder = tmp_path_factory.mktemp("seq2seq")
    model.save_pretrained(folder)
    return model, folder


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_encoder_and_decoder_are_transformers(pair: tuple[Any, Path], packed: bool) -> None:
    model, folder = pair
    ours = PagedEncoderDecoder(folder, packed=packed)
    windows = [encoded(text) for text in TEXTS]
    with torch.inference_mode():
        found = ours.model.encoder(windows)
        expected = [model.get_encoder()(torch.tensor([text])).last_hidden_state[0] for text in TEXTS]
    assert found.lengths == [len(text) for text in TEXTS]
    torch.testing.assert_close(found.rows, torch.cat(expected), atol=1e-4, rtol=1e-4)
    ours.listen(windows)
    prompts = [[2, 7, 9, 11, 33], [2], [2, *range(20, 50)]]
    first = ours.step(prompts)
    later = ours.step([[5], [], [6, 8, 77]])
    reported = [[*prompts[0], 5], prompts[1], [*prompts[2], 6, 8, 77]]
    for row, tokens in enumerate(reported):
        made = torch.cat([part[row] for part in (first, later) if len(part[row])])
        torch.testing.assert_close(made, logits_of(model, TEXTS[row], tokens), atol=3e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["longt5", "switch", "t5gemma2"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
def test_bfloat16_is_as_near_float32_as_transformers_is(kind: str, packed: bool, tmp_path: Path) -> None:
    model = KINDS[kind]()
    model.save_pretrained(tmp_path)
    ours = PagedEncoderDecoder(tmp_path, dtype=torch.bfloat16, packed=packed)
    ours.listen([encoded(text) for text in TEXTS])
    outputs = [[2, 7, 9, 11, 33], [2], [2, *range(20, 50)]]
    expected = [logits_of(model, *each) for each in zip(TEXTS, outputs, strict=True)]
    theirs = [logits_of(model.bfloat16(), *each) for each in zip(TEXTS, outputs, strict=True)]
    errors = [torch.cat(made).sub_(torch.cat(expected)).norm() for made in (ours.step(outputs), theirs)]
    assert errors[0] < 1.2 * errors[1]


def test_a_long_text_is_encoded_in_parts_as_transformers_does(tmp_path: Path) -> None:
    model = KINDS["longt5"]()
    model.save_pretrained(tmp_path)
    ours = PagedEncoderDecoder(tmp_path)
    text = [(7 * place + 3) % (VOCAB - 10) + 5 for place in range(2399)]
    with torch.inference_mode():
        found = ours.model.encoder([encoded(text)]).rows
        expected = model.get_encoder()(torch.tensor([text])).last_hidden_state[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_greedy_tokens_are_transformers(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    ours = PagedEncoderDecoder(folder)
    ours.listen([encoded(text) for text in TEXTS])
    assert isinstance(ours.config, TextToTextConfig)
    start = list(ours.config.decoder_start)
    tokens: list[list[int]] = [list(start) for _ in TEXTS]
    logits = ours.step(tokens)
    for _ in range(24):
        following = [int(part[-1].argmax()) for part in logits]
        for row, token in zip(tokens, following, strict=True):
            row.append(token)
        logits = ours.step([[token] for token in following])
    for row, text in zip(tokens, TEXTS, strict=True):
        assert logits_of(model, text, row)[len(start) - 1 : -1].argmax(1).tolist() == row[len(start) :]
