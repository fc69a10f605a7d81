"""Full-size models whose weights are made up: the numbers of a published configuration, as a GGUF file tells them.

A machine that reads no hub can measure their speed, which the values of weights do not change.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

PREFIX: Final = "random:"
"""What a model's name begins with where its weights are made up."""


@dataclass(frozen=True)
class RandomModel:
    """A decoder of gated layers whose queries and keys are normed by head, as llama.cpp's metadata describe it."""

    name: str
    about: str
    """Which configuration it has, and what is left out of it."""
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    """Of each expert, where there are any."""
    vocabulary: int
    context: int
    eps: float = 1e-6
    rope_base: float = 1e6
    tied: bool = False
    """The head is the embedding."""
    experts: int = 0
    experts_used: int = 0
    convolutions: frozenset[int] = frozenset()
    """Layers with a short convolution in place of attention."""
    taps: int = 0
    """Of each convolution."""
    final_norm: str = "output_norm"

    @property
    def kv_heads_by_layer(self) -> list[int]:
        return [0 if layer in self.convolutions else self.kv_heads for layer in range(self.layers)]


class Tensor(NamedTuple):
    """One tensor of the file: rows of ``shape[-1]`` values."""

    name: str
    shape: tuple[int, ...]
    quantized: bool


_QWEN3_MOE: Final = RandomModel(
    name="qwen3-30b-a3b",
    about="Qwen3-30B-A3B",
    architecture="qwen3moe",
    layers=48,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_dim=128,
    inner=768,
    vocabulary=151936,
    context=40960,
    experts=128,
    experts_used=8,
)


def _cut(name: str, about: str, **fewer: int) -> RandomModel:
    return RandomModel(**{**vars(_QWEN3_MOE), "name": name, "about": about, **fewer})


_ALL: Final = (
    _QWEN3_MOE,
    _cut("qwen3-30b-a3b-32-experts", "Qwen3-30B-A3B with 32 of its 128 experts", experts=32),
    _cut("qwen3-30b-a3b-16-layers", "Qwen3-30B-A3B with 16 of its 48 layers", layers=16),
    RandomModel(
        name="qwen3-1.7b",
        about="Qwen3-1.7B",
        architecture="qwen3",
        layers=28,
        hidden=2048,
        heads=16,
        kv_heads=8,
        head_dim=128,
        inner=6144,
        vocabulary=151936,
        context=40960,
        tied=True,
    ),
    RandomModel(
        name="lfm2-1.2b",
        about="LFM2-1.2B",
        architecture="lfm2",
        layers=16,
        hidden=2048,
        heads=32,
        kv_heads=8,
        head_dim=64,
        inner=8192,
        vocabulary=65536,
        context=128000,
        eps=1e-5,
        tied=True,
        convolutions=frozenset(range(16)) - {2, 5, 8, 10, 12, 14},
        taps=3,
        final_norm="token_embd_norm",
    ),
)
RANDOM_MODELS: Final[Mapping[str, RandomModel]] = {model.name: model for model in _ALL}


def metadata(model: RandomModel) -> dict[str, int | float | list[int]]:
    """Keys of the file below the architecture's name."""
    found: dict[str, int | float | list[int]] = {
        "block_count": model.layers,
        "context_length": model.context,
        "embedding_length": model.hidden,
        "feed_forward_length": model.inner,
        "vocab_size": model.vocabulary,
        "attention.head_count": model.heads,
        "attention.head_count_kv": model.kv_heads_by_layer if model.convolutions else model.kv_heads,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        "attention.layer_norm_rms_epsilon": model.eps,
        "rope.freq_base": model.rope_base,
    }
    if model.experts:
        found |= {
            "expert_count": model.experts,
            "expert_used_count": model.experts_used,
            "expert_feed_forward_length": model.inner,
        }
    if model.convolutions:
        found["shortconv.l_cache"] = model.taps
    return found


def tensors(model: RandomModel) -> Iterator[Tensor]:
    """All of the file, in its order."""
    yield Tensor("token_embd.weight", (model.vocabulary, model.hidden), True)
    for layer, kv_heads in enumerate(model.kv_heads_by_layer):
        mixer = _attention(model) if kv_heads else _convolution(model)
        for tensor in (*mixer, *_network(model)):
            yield tensor._replace(name=f"blk.{layer}.{tensor.name}.weight")
    yield Tensor(f"{model.final_norm}.weight", (model.hidden,), False)
    if not model.tied:
        yield Tensor("output.weight", (model.vocabulary, model.hidden), True)


def _attention(model: RandomModel) -> Iterator[Tensor]:
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield Tensor("attn_norm", (model.hidden,), False)
    yield Tensor("attn_q", (queries, model.hidden), True)
    yield Tensor("attn_k", (keys, model.hidden), True)
    yield Tensor("attn_v", (keys, model.hidden), True)
    yield Tensor("attn_q_norm", (model.head_dim,), False)
    yield Tensor("attn_k_norm", (model.head_dim,), False)
    yield Tensor("attn_output", (model.hidden, queries), True)


def _convolution(model: RandomModel) -> Iterator[Tensor]:
    yield Tensor("attn_norm", (model.hidden,), False)
    yield Tensor("shortconv.in_proj", (3 * model.hidden, model.hidden), True)
    yield Tensor("shortconv.conv", (model.hidden, model.taps), False)
    yield Tensor("shortconv.out_proj", (model.hidden, model.hidden), True)


def _network(model: RandomModel) -> Iterator[Tensor]:
    yield Tensor("ffn_norm", (model.hidden,), False)
    many, kind = ((model.experts,), "_exps") if model.experts else ((), "")
    if model.experts:
        yield Tensor("ffn_gate_inp", (model.experts, model.hidden), False)
    yield Tensor(f"ffn_gate{kind}", (*many, model.inner, model.hidden), True)
    yield Tensor(f"ffn_up{kind}", (*many, model.inner, model.hidden), True)
    yield Tensor(f"ffn_down{kind}", (*many, model.hidden, model.inner), True)
