"""A tiny LongCat Flash Lite, for :mod:`.hub`: a LongCat Flash with embeddings of n-grams."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers as untyped_transformers
from torch import nn

from stentor.tests.parity.hub_form import Published, Tensors, Values
from stentor.tests.parity.latent import longcat

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""
_LONGEST, _EACH, _RATIO = 3, 2, 3
"""Tokens of the longest n-grams; tables of each length; rows of a table, in vocabularies."""


def configs(shape: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    """By name, each made anew of the sizes in ``shape``."""
    sizes = longcat({**shape, "num_key_value_heads": shape["num_attention_heads"]})
    return {"longcat-lite": lambda: transformers.LongcatFlashConfig(**sizes)}


class _Words(nn.Module):
    """The mean of a token's embedding and of projected ones of the n-grams that end at it."""

    def __init__(self, words: nn.Embedding, eos: int) -> None:
        super().__init__()
        self.words, self.eos, (vocab, hidden) = words, eos, words.weight.shape
        tables = _EACH * (_LONGEST - 1)
        self.lengths = [2 + number // _EACH for number in range(tables)]
        sizes = [_RATIO * vocab + 1 + 2 * number for number in range(tables)]
        self.embedders = nn.ModuleList(nn.Embedding(size, hidden // tables) for size in sizes)
        self.post_projs = nn.ModuleList(nn.Linear(hidden // tables, hidden, bias=False) for _ in sizes)
        for module in (*self.embedders, *self.post_projs):
            module.weight.data.normal_(0, 0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([self._text(tokens.tolist()) for tokens in ids])

    def _text(self, tokens: list[int]) -> torch.Tensor:
        total = self.words.weight[tokens]
        for length, embedder, out in zip(self.lengths, self.embedders, self.post_projs, strict=True):
            table = torch.as_tensor(embedder.weight)
            rows = [
                hashed(tokens, at, length, len(self.words.weight), len(table), self.eos) for at in range(len(tokens))
            ]
            total = total + out(table[rows])
        return total / (1 + len(self.lengths))


def hashed(tokens: list[int], at: int, length: int, vocab: int, rows: int, eos: int) -> int:
    """The row of the n-gram of up to ``length`` tokens that ends ``at`` a place, and has no end of a text before it."""
    total = tokens[at]
    for back in range(1, length):
        if back > at or tokens[at - back] == eos:
            break
        total += tokens[at - back] * vocab**back
    return total % rows


@torch.no_grad()
def _with_ngrams(model: Any) -> None:
    torch.manual_seed(3)
    model.model.embed_tokens = _Words(model.model.embed_tokens, model.config.eos_token_id)


def _described(config: Any) -> Values:
    own = {field: value for field, value in config.to_dict().items() if field != "architectures"}
    own |= {"model_type": "longcat_flash_ngram", "ngram_vocab_size_ratio": _RATIO}
    return {**own, "emb_split_num": _EACH, "emb_neighbor_num": _LONGEST, "num_key_value_heads": ...}


def _stored(tensors: Tensors, config: Any) -> Tensors:
    """With parts of a layer that predicts further tokens."""
    return {**tensors, "model.mtp.norm.weight": torch.ones(2)}


_NAMES = {"embed_tokens.words": "embed_tokens", "embed_tokens.embedders": "ngram_embeddings.embedders"}
_NAMES |= {"embed_tokens.post_projs": "ngram_embeddings.post_projs"}
PUBLISHED: Mapping[str, Published] = {
    "longcat-lite": Published("LongcatFlashNgramForCausalLM", _NAMES, _described, _stored, _with_ngrams)
}
"""By the name of a configuration."""
