"""The demo embedder, packed as it is served on a CPU, against transformers with mean pooling, on texts of all kinds."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from stentor.engine.layers.forward_batch import ForwardBatch
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.varlen_batch import VarlenBatch
from stentor.engine.loading.download.hub import DEMO_EMBEDDING_MODEL, resolve_model
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.engine.models.pooling_model import PoolingModel
from stentor.kernels import native
from stentor.protocols.ipc.pooling import Pooling

WORDS = ["Stentor", "calls", "with", "fifty", "voices", "antidisestablishmentarianism", "e=mc²", "don't", "3.14", "№7"]
OTHERS = [
    "你好世界",
    "日本語の文",
    "한국어",
    "Привет",
    "مرحبا",
    "🙂",
    "👩‍👩‍👧",
    "🇫🇷",
    "naïve café",
    "\u200b",
    "\x07",
    "ﬁ",
    "\ud83d",
]
SHORT = ["", " ", "\n\t", "a", ".", "[MASK]", "[CLS] [SEP]"]
LONG = ["x" * 3000, "word " * 2000, "🙂" * 300, "语" * 900, "-" * 999]


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model(DEMO_EMBEDDING_MODEL)


def some_texts() -> list[str]:
    """Sixty."""
    rng = random.Random(8)
    texts = [*SHORT, *LONG]
    while len(texts) < 60:
        count = rng.choice([1, 1, 2, 3, 5, 8, 13])
        chosen = [rng.choice(WORDS if rng.random() < 0.7 else OTHERS) for _ in range(count)]
        texts.append(rng.choice([" ", "", ", "]).join(chosen).encode("utf-8", "replace").decode())
    return texts


def tokenized(folder: Path, texts: list[str]) -> list[list[int]]:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    longest = pooling_config(folder).max_length
    ids: list[list[int]] = tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
    assert max(map(len, ids)) == longest, "none of the texts is cut"
    assert min(map(len, ids)) == 2, "an empty text is its two special tokens"
    return ids


def in_parts(ids: list[list[int]], size: int) -> Iterator[list[int]]:
    """Numbers of texts, of about the same length."""
    by_length = sorted(range(len(ids)), key=lambda number: len(ids[number]))
    for first in range(0, len(ids), size):
        yield by_length[first : first + size]


def theirs(folder: Path, ids: list[list[int]]) -> torch.Tensor:
    model: Any = transformers.BertModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False).eval()
    found = torch.empty(len(ids), model.config.hidden_size)
    for part in in_parts(ids, 8):  # all are filled up to the longest
        longest = max(len(ids[number]) for number in part)
        tokens, mask = torch.zeros(len(part), longest, dtype=torch.long), torch.zeros(len(part), longest)
        for row, number in enumerate(part):
            tokens[row, : len(ids[number])] = torch.tensor(ids[number])
            mask[row, : len(ids[number])] = 1
        hidden = model(input_ids=tokens, attention_mask=mask).last_hidden_state * mask.unsqueeze(2)
        found[part] = torch.nn.functional.normalize(hidden.sum(1) / mask.sum(1, keepdim=True), dim=-1)
    return found


class Ours:
    def __init__(self, folder: Path) -> None:
        packed = native.library() is not None
        self.model = PoolingModel(
            pooling_config(folder), LayerContext(torch.device("cpu"), torch.float32, False, packed=packed), 256
        )
        self.model.load(load_file(folder / "model.safetensors").items(), lambda name: ())

    def __call__(self, ids: list[list[int]]) -> torch.Tensor:
        tokens = torch.tensor([token for text in ids for token in text])
        starts = torch.tensor([0, *map(len, ids)]).cumsum(0)
        hidden = self.model.normed(
            self.model.forward(ForwardBatch.whole(tokens, VarlenBatch(starts.int(), max(map(len, ids)))))
        )
        made = self.model.pool(hidden, tokens, starts, [Pooling("embed")] * len(ids))
        return torch.cat([each.values for each in made])


@torch.inference_mode()
def test_vectors_are_those_of_transformers_and_of_each_text_alone(folder: Path) -> None:
    ids = tokenized(folder, some_texts())
    expected, ours = theirs(folder, ids), Ours(folder)
    order = random.Random(9).sample(range(len(ids)), len(ids))
    found = torch.empty_like(expected)
    for first in range(0, len(order), 50):
        part = order[first : first + 50]
        found[part] = ours([ids[number] for number in part])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert float((found * expected).sum(1).min()) >= 0.99999
    for number in range(0, len(ids), 7):
        torch.testing.assert_close(ours([ids[number]])[0], found[number], rtol=0, atol=1e-5)
