"""What is timed: each operation on the shapes of a model and the tokens of a batch, with the bytes it must move
and the operations it must do. Intermediate results that stay on the chip are counted in neither."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from stentor import kernels
from stentor.engine.model_config.spec.attention import AttentionSpec
from stentor.engine.model_config.spec.model import ModelSpec, dense_mlp
from stentor.kernels import sampling
from stentor.kernels.linear_gguf import Kind
from stentor.kernels.variants import Choice

from .spec import BatchSpec

FP8 = torch.float8_e4m3fn
INT8 = torch.int8


@dataclass(frozen=True)
class Setting:
    """Where and on what shapes operations run."""

    model: ModelSpec
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    block_size: int
    variant: Choice = "auto"

    @property
    def mixer(self) -> AttentionSpec:
        return self.model.layers[0].attention

    @property
    def inner(self) -> int:
        return dense_mlp(self.model).inner

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(dtype or self.dtype)


@dataclass(frozen=True)
class Case:
    shape: str
    settings: str
    run: Callable[[], object]
    bytes: float
    flops: float
    variant: str = "auto"


Maker = Callable[[BatchSpec, Setting], Iterator[Case]]


def _norm(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    hidden, tokens = on.model.hidden_size, spec.tokens
    x, residual, weight = on.random(tokens, hidden), on.random(tokens, hidden), on.random(hidden)
    shape, variant = f"{tokens}x{hidden}", kernels.norm.choose(x, on.variant)
    plain = partial(kernels.rms_norm, x, weight, 1e-5, variant=on.variant)
    yield Case(shape, "", plain, 2 * x.nbytes, 0, variant)
    added = partial(kernels.add_rms_norm, x, residual, weight, 1e-5, variant=on.variant)
    yield Case(shape, "with residual", added, 4 * x.nbytes, 0, variant)


def _activation(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    x = on.random(spec.tokens, 2 * on.inner)
    run = partial(kernels.gated_activation, x, "silu", variant=on.variant)
    yield Case(_shape(x), "", run, 1.5 * x.nbytes, 0, kernels.activation.choose(x, on.variant))


def _embedding(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    table = on.random(on.model.vocab_size, on.model.hidden_size)
    tokens = torch.randint(on.model.vocab_size, (spec.tokens,), device=on.device)
    moved = 2 * spec.tokens * on.model.hidden_size * table.itemsize
    yield Case(f"{spec.tokens}x{on.model.hidden_size}", "", lambda: kernels.embedding(tokens, table), moved, 0)


def _cache(spec: BatchSpec, on: Setting) -> tuple[tuple[torch.Tensor, torch.Tensor], kernels.AttentionBatch]:
    """A filled cache and the batch over it, its blocks in random order."""
    size, mixer = on.block_size, on.mixer
    counts = [-(-keys // size) for _, keys in spec.sequences]
    total = sum(counts)
    spread = 30.0 if on.kv_dtype == INT8 else 1.0
    k, v = kernels.make_kv_cache(total, mixer.kv_heads, mixer.head_dim, size, on.kv_dtype, on.device)
    for blocks in (k, v):
        for block in range(0, total, 256):
            piece = blocks[block : block + 256]
            piece.copy_(torch.randn(piece.shape, device=on.device, dtype=torch.float32).mul_(spread).to(on.kv_dtype))
    order = torch.randperm(total).to(torch.int32)
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    query_start, slots, taken = [0], [], 0
    for row, ((new, keys), count) in enumerate(zip(spec.sequences, counts, strict=True)):
        own = order[taken : taken + count]
        tables[row, :count] = own
        taken += count
        query_start.append(query_start[-1] + new)
        positions = torch.arange(keys - new, keys)
        slots.append(own[positions // size].long() * size + positions % size)
    batch = kernels.AttentionBatch(
        query_start=torch.tensor(query_start, dtype=torch.int32, device=on.device),
        seq_lens=torch.tensor([keys for _, keys in spec.sequences], dtype=torch.int32, device=on.device),
        block_tables=tables.to(on.device),
        slots=torch.cat(slots).to(on.device),
        max_query_len=max(new for new, _ in spec.sequences),
        max_seq_len=max(keys for _, keys in spec.sequences),
        decode_rows=spec.decode_rows,
    )
    return (k, v), batch


def _cache_options(on: Setting, k_cache: torch.Tensor) -> dict[str, Any]:
    """What an operation on the cache is told besides its tensors."""
    blocks, heads, _, size = k_cache.shape
    shapes = {FP8: (heads,), INT8: kernels.kv_scale_shape(blocks, heads, size)}
    shape = shapes.get(on.kv_dtype)
    scales = [None if shape is None else torch.full(shape, 1 / 30, device=on.device) for _ in "kv"]
    return {"k_scale": scales[0], "v_scale": scales[1], "variant": on.variant}


def _cached_bytes(on: Setting) -> int:
    """Of a key or a value of one head, with its scale where it has its own."""
    return on.mixer.head_dim * on.kv_dtype.itemsize + (4 if on.kv_dtype == INT8 else 0)


def _attention(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    (k, v), batch = _cache(spec, on)
    mixer = on.mixer
    q = on.random(spec.tokens, mixer.heads, mixer.head_dim)
    per_key = 2 * mixer.kv_heads * _cached_bytes(on)
    yield Case(
        _heads(mixer),
        f"blocks of {on.block_size}, {_name(on.kv_dtype)} cache",
        partial(kernels.paged_attention, q, k, v, batch, scale=mixer.scale, **_cache_options(on, k)),
        2 * q.nbytes + spec.keys * per_key,
        4 * spec.pairs * mixer.heads * mixer.head_dim,
        kernels.attention.choose(q, k, on.variant),
    )
    whole_prompt = len(spec.sequences) == 1 and spec.tokens == spec.keys and on.kv_dtype == on.dtype
    if on.device.type == "cuda" and whole_prompt:
        keys, values = (on.random(spec.keys, mixer.kv_heads, mixer.head_dim) for _ in "kv")
        run = partial(library_attention, q, keys, values, mixer.scale, SDPBackend.CUDNN_ATTENTION)
        moved, pairs = 2 * q.nbytes + spec.keys * per_key, spec.pairs
        yield Case(_heads(mixer), "keys in a row", run, moved, 4 * pairs * mixer.heads * mixer.head_dim, "cuDNN")


def library_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, backend: SDPBackend) -> Tensor:
    """Causal attention of a whole prompt by torch's ``backend``: q [T, Hq, D], k and v [T, Hkv, D] → [1, Hq, T, D].
    Raises RuntimeError where the backend cannot take it."""
    with sdpa_kernel(backend):
        q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)


def _rotate_and_write(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    (k_cache, v_cache), batch = _cache(spec, on)
    mixer, tokens = on.mixer, spec.tokens
    heads, kv_heads, dim = mixer.heads, mixer.kv_heads, mixer.head_dim
    qkv = on.random(tokens, (heads + 2 * kv_heads) * dim)
    q, k, v = (part.view(tokens, -1, dim) for part in qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1))
    cos, sin = (torch.rand(batch.max_seq_len, dim // 2, device=on.device) for _ in range(2))
    positions = torch.cat([torch.arange(keys - new, keys) for new, keys in spec.sequences]).to(on.device)
    tensors = (q, k, v, cos, sin, positions, k_cache, v_cache, batch.slots)
    written = 2 * tokens * kv_heads * _cached_bytes(on)
    yield Case(
        f"{tokens}x{_heads(mixer)}",
        f"blocks of {on.block_size}, {_name(on.kv_dtype)} cache",
        partial(kernels.rotate_and_write_kv_, *tensors, **_cache_options(on, k_cache)),
        qkv.nbytes + q.numel() * q.itemsize + written,
        0,
        on.variant,
    )


def _projections(on: Setting) -> Iterator[tuple[str, int, int]]:
    """(name, outputs, inputs) of a layer's products."""
    model, mixer = on.model, on.mixer
    query = mixer.heads * mixer.head_dim
    yield "qkv", query + 2 * mixer.kv_heads * mixer.head_dim, model.hidden_size
    yield "o", model.hidden_size, query
    yield "gate_up", 2 * on.inner, model.hidden_size
    yield "down", model.hidden_size, on.inner


Product = tuple[int, Callable[[], object]]
"""Bytes of a weight, and a call that multiplies with it."""


def _products(make: Callable[[torch.Tensor, int, Setting], Product | None], prefix: str = "") -> Maker:
    """Cases of all products of a layer. ``make`` gets inputs and the number of outputs; None: no weight is so."""

    def cases(spec: BatchSpec, on: Setting) -> Iterator[Case]:
        for name, outputs, inputs in _projections(on):
            made = make(on.random(spec.tokens, inputs), outputs, on)
            if made is not None:
                moved = made[0] + spec.tokens * (inputs + outputs) * on.dtype.itemsize
                flops = 2.0 * spec.tokens * inputs * outputs
                yield Case(f"{spec.tokens}x{inputs}x{outputs}", prefix + name, made[1], moved, flops)

    return cases


def _plain(x: torch.Tensor, outputs: int, on: Setting) -> Product:
    weight = on.random(outputs, x.shape[1])
    return weight.nbytes, partial(kernels.linear, x, weight)


def _scaled(
    dtype: torch.dtype, by: Any, quantize: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
) -> Callable[[torch.Tensor, int, Setting], Product]:
    def make(x: torch.Tensor, outputs: int, on: Setting) -> Product:
        weight, scale = quantize(on.random(outputs, x.shape[1]))
        rows = kernels.quantize(x, kernels.ActivationScheme(dtype, by))
        product: Callable[..., object] = kernels.linear_fp8 if dtype == FP8 else kernels.linear_int8
        return weight.nbytes + scale.nbytes, partial(product, rows, weight, scale, None, out_dtype=on.dtype)

    return make


def _w4(x: torch.Tensor, outputs: int, on: Setting) -> Product:
    inputs = x.shape[1]
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8, device=on.device)
    weight = kernels.W4Weight.from_codes(codes, on.random(outputs, inputs // 128), group=128)
    return weight.nbytes, partial(kernels.linear_w4, x, weight)


def _linear_gguf(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    sizes: dict[Kind, tuple[int, int]] = {"Q4_K": (256, 144), "Q6_K": (256, 210), "Q8_0": (32, 34)}
    for kind, size in sizes.items():
        yield from _products(partial(_gguf, kind, size), f"{kind} ")(spec, on)


def _gguf(kind: Kind, size: tuple[int, int], x: torch.Tensor, outputs: int, on: Setting) -> Product | None:
    elements, bytes_each = size
    if x.shape[1] % elements:  # such a matrix is stored in another type
        return None
    shape = (outputs, x.shape[1] // elements * bytes_each)
    blocks = torch.randint(0, 60, shape, dtype=torch.uint8, device=on.device)
    weight = kernels.GGUFWeight.from_blocks(blocks, kind)
    return weight.nbytes, partial(kernels.linear_gguf, x, weight)


def _sample(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    rows, vocab = len(spec.sequences), on.model.vocab_size
    logits = 3 * on.random(rows, vocab, dtype=torch.float32)
    slots, indices = torch.arange(rows, device=on.device), torch.zeros(rows, dtype=torch.int64, device=on.device)
    settings: Mapping[str, tuple[float, int, float, float]] = {
        "greedy": (0.0, 0, 1.0, 0.0),
        "temperature": (1.0, 0, 1.0, 0.0),
        "top-k 50, top-p 0.9": (0.8, 50, 0.9, 0.0),
        "top-p 0.95, min-p 0.02": (0.8, 0, 0.95, 0.02),
    }
    for name, (temperature, top_k, top_p, min_p) in settings.items():
        slot_params = sampling.SlotParams.empty(rows, torch.device("cpu"))
        for slot in range(rows):
            slot_params.set(slot, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=slot)
        run = partial(sampling.draw, logits, slots, indices, _on_device(slot_params, on.device))
        yield Case(f"{rows}x{vocab}", name, run, logits.nbytes, 0)
    tokens = torch.zeros(rows, dtype=torch.int64, device=on.device)
    found = partial(sampling.logprobs, logits, slots, tokens, 5)
    yield Case(f"{rows}x{vocab}", "logprobs, top 5", found, logits.nbytes, 0)


def _on_device(slot_params: sampling.SlotParams, device: torch.device) -> sampling.SlotParams:
    moved = {field.name: getattr(slot_params, field.name).to(device) for field in fields(slot_params)}
    return sampling.SlotParams(**moved)


def _layer_norm(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    x, weight = on.random(spec.tokens, on.model.hidden_size), on.random(on.model.hidden_size)
    run = partial(kernels.layer_norm, x, weight, weight, 1e-5, variant=on.variant)
    yield Case(_shape(x), "", run, 2 * x.nbytes, 0)


def _quantised_rows(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    """What hands float8 to the next product, by token."""
    scheme = kernels.ActivationScheme(FP8, "token")
    hidden, inner = on.model.hidden_size, on.inner
    x, weight, gate_up = on.random(spec.tokens, hidden), on.random(hidden), on.random(spec.tokens, 2 * inner)
    shape, values = f"{spec.tokens}x{hidden}", spec.tokens * hidden
    yield Case(shape, "quantize", partial(kernels.quantize, x, scheme, variant=on.variant), x.nbytes + values, 0)
    norm = partial(kernels.rms_norm_quantized, x, weight, 1e-5, scheme, variant=on.variant)
    yield Case(shape, "norm", norm, x.nbytes + values, 0)
    gated = partial(kernels.gated_activation_quantized, gate_up, "silu", scheme, variant=on.variant)
    yield Case(_shape(gate_up), "activation", gated, gate_up.nbytes + spec.tokens * inner, 0)


def _write_kv(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    caches, batch = _cache(spec, on)
    k = on.random(spec.tokens, on.mixer.kv_heads, on.mixer.head_dim)
    run = partial(kernels.write_kv_, k, k, *caches, batch.slots, **_cache_options(on, caches[0]))
    moved = 2 * (k.nbytes + spec.tokens * on.mixer.kv_heads * _cached_bytes(on))
    yield Case(f"{spec.tokens}x{on.mixer.kv_heads}x{on.mixer.head_dim}", f"{_name(on.kv_dtype)} cache", run, moved, 0)


def _varlen_attention(spec: BatchSpec, on: Setting) -> Iterator[Case]:
    """Every new token sees every key of its sequence, and no cache is involved: encoders, cross-attention."""
    mixer, new, keys = on.mixer, [q for q, _ in spec.sequences], [k for _, k in spec.sequences]
    q = on.random(sum(new), mixer.heads, mixer.head_dim)
    k = on.random(sum(keys), mixer.kv_heads, mixer.head_dim)
    q_start, k_start = (
        torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=on.device)
        for lengths in (new, keys)
    )

    tensors = (q, k, k, q_start, k_start, max(new), max(keys))
    run = partial(kernels.varlen_attention, *tensors, scale=mixer.scale, variant=on.variant)
    pairs = sum(count * length for count, length in spec.sequences)
    yield Case(_heads(mixer), "", run, 2 * (q.nbytes + k.nbytes), 4 * pairs * mixer.heads * mixer.head_dim)


OPERATIONS: Mapping[str, Maker] = {
    "attention": _attention,
    "varlen_attention": _varlen_attention,
    "write_kv": _write_kv,
    "rotate_and_write": _rotate_and_write,
    "norm": _norm,
    "layer_norm": _layer_norm,
    "quantised_rows": _quantised_rows,
    "activation": _activation,
    "embedding": _embedding,
    "linear": _products(_plain),
    "linear_fp8": _products(_scaled(FP8, "token", lambda weight: kernels.quantize_weight_fp8(weight, "channel"))),
    "linear_fp8_block": _products(_scaled(FP8, "group", lambda weight: kernels.quantize_weight_fp8(weight, "block"))),
    "linear_int8": _products(_scaled(torch.int8, "token", kernels.quantize_weight_int8)),
    "linear_w4": _products(_w4),
    "linear_gguf": _linear_gguf,
    "sample": _sample,
}


def _shape(x: torch.Tensor) -> str:
    return "x".join(map(str, x.shape))


def _heads(mixer: AttentionSpec) -> str:
    return f"{mixer.heads}/{mixer.kv_heads}x{mixer.head_dim}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
