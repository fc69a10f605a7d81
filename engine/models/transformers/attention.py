"""Attention functions for transformers' modules: over the paged cache, or recording what modules ask for.

Modules call the function registered under the attention name of their configuration, and pass on an argument of the
forward: an object of :class:`PassAttention`. Modules that do not look up a function get a replacement
(:mod:`.falcon`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol

import msgspec
import torch

from stentor import kernels

from ...layers.forward_batch import ForwardBatch
from ...model_config.config_fields import ConfigError
from ...model_config.spec.attention import AttentionSpec

PAGED: Final = "stentor_paged"
PROBED: Final = "stentor_probed"
"""Names of attention functions; masks are made only for the second, and report what a token sees."""
HANDED: Final = "stentor_attends"
"""The argument that modules pass on."""


class PassAttention(Protocol):
    """The attention of one forward pass."""

    def attend(
        self, module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: object, asked: Mapping[str, Any]
    ) -> torch.Tensor:
        """[1, heads, tokens, head_dim] each → [1, tokens, heads, head_dim]."""


class MaskScope(msgspec.Struct, frozen=True):
    """Stands for a mask: a token sees ``window`` tokens up to itself; 0: all."""

    window: int


class PagedAttention(msgspec.Struct, frozen=True):
    """Attention over a batch's caches, after writing keys and values to them."""

    batch: ForwardBatch
    layers: Mapping[int, int]
    """Cache index by the module's layer number."""
    specs: Sequence[AttentionSpec]
    """By cache index."""

    def attend(
        self, module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: object, asked: Mapping[str, Any]
    ) -> torch.Tensor:
        number = self.layers[module.layer_idx]
        spec, store = self.specs[number], self.batch.caches[number]
        attention = self.batch.attention[store.group]
        queries, keys, values = (each[0].transpose(0, 1).contiguous() for each in (q, k, v))
        ones = torch.ones(spec.kv_heads, dtype=torch.float32, device=k.device)
        k_scale, v_scale = store.scales((ones, ones))
        kernels.write_kv_(keys, values, store.k, store.v, attention.slots, k_scale=k_scale, v_scale=v_scale)
        sinks = asked.get("s_aux")
        found = kernels.paged_attention(
            queries,
            store.k,
            store.v,
            attention,
            scale=spec.scale,
            window=spec.window,
            softcap=spec.softcap,
            sinks=None if sinks is None else sinks.detach().float().contiguous(),
            k_scale=k_scale,
            v_scale=v_scale,
        )
        return found[None]


class ProbedAttention(msgspec.Struct):
    """Records the attention that each module asks for. Raises :class:`ConfigError` if the paged cache does not support
    it."""

    specs: dict[int, AttentionSpec] = msgspec.field(default_factory=dict)
    """By the module's layer number, in the order of attention."""

    def attend(
        self, module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: object, asked: Mapping[str, Any]
    ) -> torch.Tensor:
        number = getattr(module, "layer_idx", None)
        if not isinstance(number, int) or number in self.specs:
            raise ConfigError("its layers attend more than once")
        if not isinstance(mask, MaskScope):
            raise ConfigError("it masks attention in a way of its own")
        if getattr(module, "is_causal", True) is False or asked.get("is_causal") is False:
            raise ConfigError("its tokens see those behind them")
        if asked.get("position_bias") is not None:
            raise ConfigError("it adds a bias to scores by distance (ALiBi), which the paged kernels do not have")
        _, heads, tokens, dim = q.shape
        if k.shape[3] != dim or v.shape[3] != dim:
            raise ConfigError(f"its keys have {k.shape[3]} dimensions and its values {v.shape[3]}, expected {dim} each")
        if k.shape[2] != tokens or v.shape != k.shape:
            raise ConfigError("its layers attend to keys of other layers or of other texts")
        scale = asked.get("scaling")
        self.specs[number] = AttentionSpec(
            heads=heads,
            kv_heads=k.shape[1],
            head_dim=dim,
            scale=dim**-0.5 if scale is None else float(scale),
            rope=None,
            window=mask.window,
            softcap=float(asked.get("softcap") or 0.0),
            sinks=asked.get("s_aux") is not None,
        )
        return q.new_zeros(1, tokens, heads, dim)


@cache
def register() -> None:
    """Register both functions in transformers, once a process."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PAGED, _attention)
    AttentionInterface.register(PROBED, _attention)
    AttentionMaskInterface.register(PROBED, _mask)


def _attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: object, **asked: Any
) -> tuple[torch.Tensor, None]:
    attention: PassAttention | None = asked.get(HANDED)
    if attention is None:
        raise ConfigError("its modules do not hand on to attention what a pass is called with")
    return attention.attend(module, query, key, value, attention_mask, asked), None


def _mask(
    *,
    mask_function: Callable[..., torch.Tensor],
    device: Any = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    **_asked: Any,
) -> MaskScope:
    """The mask's window, from a few pairs of query and key, far enough into a text that windows and chunks differ."""
    zero = torch.zeros((), dtype=torch.int64, device=device)
    window = local_size or 0
    at = 3 * window or 1 << 20
    first = at - window + 1 if window else 0
    seen = {first: True, first - 1: False, at: True, at + 1: False}
    found = {key: bool(mask_function(zero, zero, zero + at, zero + key)) for key in seen if key >= 0}
    if use_vmap or any(found[key] != seen[key] for key in found):
        raise ConfigError("its tokens see others than those before them, all or a window")
    return MaskScope(window)
