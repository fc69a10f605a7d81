"""transformers' modules of a decoder: made without values, looked into, and run once to learn what they ask for."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from ..model_config.attention_spec import AttentionSpec
from ..model_config.config_fields import ConfigError
from ..model_config.model_spec import LayerSpec
from ..model_config.transformers_config import TransformersSpec, class_name, configuration, first_line
from .transformers_attention import HANDED, PAGED, PROBED, Attends, AttendsProbed, register
from .transformers_falcon import FALCON, HandedAsCache, register_falcon

_PROBED_TOKENS: Final = 3
_STRETCHED: Final = ("dynamic", "longrope")
"""Rotary kinds whose angles follow from the longest sequence of a pass."""


class _Given:
    """What a decoder returns, of which a head takes the hidden states alone: of all else there is nothing."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, at: Any) -> Any:
        return (self.last_hidden_state,)[at]

    def __getattr__(self, name: str) -> None:
        return None


class HeadInput(torch.nn.Module):
    """Stands where a model has its decoder: gives the head the hidden states that it is called with."""

    def forward(self, *_unused: Any, inputs_embeds: torch.Tensor, **_asked: Any) -> _Given:
        return _Given(inputs_embeds)


class RotaryTable(torch.nn.Module):
    """A rotary module's angles of all positions up to a length, so that those of a row do not follow from what shares
    its pass."""

    def __init__(self, module: Any, length: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        positions = torch.arange(length, device=device)[None]
        cos, sin = module(torch.empty(0, dtype=dtype, device=device), positions)
        self._cos, self._sin = cos[0], sin[0]

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cos[position_ids], self._sin[position_ids]


@dataclass
class Modules:
    """A model in two: its decoder, which ends with the last norm, and the rest, which makes logits."""

    decoder: Any
    head: Any
    tensors: Mapping[str, torch.Tensor]
    """Parameters and stored buffers, by the names that transformers has for them."""
    conversions: Sequence[Any]
    """Of a checkpoint's names and tensors to these."""
    hand: Callable[[Attends], dict[str, Any]]
    """How what a pass attends over is given to the decoder."""

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, over: Attends) -> torch.Tensor:
        """int64 [tokens] each → [tokens, hidden]."""
        found = self.decoder(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, return_dict=True, **self.hand(over)
        )
        hidden: torch.Tensor = found.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → [rows, vocabulary]."""
        logits: torch.Tensor = self.head(inputs_embeds=hidden[None], use_cache=False, return_dict=True).logits[0]
        return logits


def make_modules(
    config: Mapping[str, object], dtype: torch.dtype, device: torch.device, attention: str = PAGED
) -> Modules:
    """Of a config.json, with values in buffers alone. Raises :class:`ConfigError`."""
    import transformers
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.initialization import no_init_weights

    register()
    name = class_name(config)
    which: Any = getattr(transformers, name)
    hand = _handed
    if name == FALCON:
        register_falcon()
        hand = _handed_to_falcon
    elif not getattr(which, "_supports_attention_backend", False):
        raise ConfigError(f"{name} does not attend through transformers' attention interface")
    made = configuration(config)
    with ExitStack() as stack:
        stack.enter_context(no_init_weights())
        stack.enter_context(torch.device(device))
        model = which._from_config(made, dtype=dtype, attn_implementation=attention)
    model.eval().requires_grad_(False)
    model.tie_weights()
    exact = tuple(model._keep_in_fp32_modules_strict or ())
    for path, parameter in model.named_parameters():
        if exact and any(part in exact for part in path.split(".")):
            parameter.data = parameter.data.float()
    tensors, conversions = model.state_dict(), get_model_conversion_mapping(model)
    decoder = model.get_decoder()
    path = next((path for path, module in model.named_modules() if module is decoder and path), "")
    if not path or "position_ids" not in inspect.signature(decoder.forward).parameters:
        raise ConfigError(f"{name} takes no positions from its caller")
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, HeadInput())
    return Modules(decoder, model, tensors, conversions, hand)


def _handed(over: Attends) -> dict[str, Any]:
    return {HANDED: over}


def _handed_to_falcon(over: Attends) -> dict[str, Any]:
    return {"past_key_values": HandedAsCache(over)}


def probed(config: Mapping[str, object], spec: TransformersSpec) -> TransformersSpec:
    """The spec with what the layers really ask of attention, found in a pass of a few tokens over weights that share
    memory. Raises :class:`ConfigError` for a model that cannot run over a paged cache."""
    cpu = torch.device("cpu")
    try:
        modules = make_modules(config, torch.bfloat16, cpu, PROBED)
        _share_zeros(modules)
        fix_positions(modules, 2 * _PROBED_TOKENS, torch.bfloat16, cpu)
        over = AttendsProbed()
        with torch.inference_mode():
            hidden = modules.hidden(torch.zeros(_PROBED_TOKENS, dtype=torch.int64), torch.arange(_PROBED_TOKENS), over)
            logits = modules.logits(hidden)
    except ConfigError as error:
        raise ConfigError(f"transformers' {spec.architecture} cannot run over a paged cache: {error}") from error
    except Exception as error:  # code of another library, of which anything may be asked
        raise ConfigError(
            f"transformers' {spec.architecture} cannot run over a paged cache: {type(error).__name__}, "
            f"{first_line(error)}"
        ) from error
    if (count := len(over.specs)) != len(spec.layers):
        raise ConfigError(
            f"transformers' {spec.architecture} cannot run over a paged cache: {count} of its {len(spec.layers)} "
            "layers attend through transformers' attention interface"
        )
    return replace(
        spec,
        layers=tuple(
            replace(layer, mixer=_within(over.specs[number], spec.max_position))
            for number, layer in zip(sorted(over.specs), spec.layers, strict=True)
        ),
        vocab_size=logits.shape[-1],
        hidden_size=hidden.shape[-1],
    )


def fix_positions(modules: Modules, length: int, dtype: torch.dtype, device: torch.device) -> None:
    """Puts tables of ``length`` positions in place of rotary modules whose angles follow from what is computed.
    Raises :class:`ConfigError` for one that asks for more than positions."""
    for path, module in list(modules.decoder.named_modules()):
        kind = getattr(module, "rope_type", None)
        kinds = kind.values() if isinstance(kind, dict) else (kind,)
        if not any(each in _STRETCHED for each in kinds):
            continue
        if list(inspect.signature(module.forward).parameters)[:3] != ["x", "position_ids"]:
            raise ConfigError(f"its rotary positions are stretched ({kind}) in a way of its own")
        parent, _, last = path.rpartition(".")
        setattr(modules.decoder.get_submodule(parent), last, RotaryTable(module, length, dtype, device))


def layer_numbers(specs: Sequence[LayerSpec]) -> dict[int, int]:
    """Of each layer that attends the number of its cache: all do."""
    return {number: number for number in range(len(specs))}


def _within(mixer: AttentionSpec, longest: int) -> AttentionSpec:
    """A window longer than the context is none."""
    return replace(mixer, window=0) if mixer.window >= longest else mixer


def _share_zeros(modules: Modules) -> None:
    """Parameters of one shape become one tensor of zeros, so that a large model takes the memory of a layer."""
    zeros: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
    for part in (modules.decoder, modules.head):
        for parameter in part.parameters():
            key = parameter.shape, parameter.dtype
            if key not in zeros:
                zeros[key] = torch.zeros(parameter.shape, dtype=parameter.dtype)
            parameter.data = zeros[key]
