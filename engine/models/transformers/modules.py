"""transformers' modules of a decoder: made without values, inspected, and run once to learn their attention."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import msgspec
import torch
from msgspec.structs import replace

from ...layers.linear.weights import WeightError
from ...model_config.config_fields import ConfigError
from ...model_config.spec.attention import AttentionSpec
from ...model_config.spec.layer import LayerSpec
from ...model_config.transformers_config import KeptKeys, TransformersSpec, configuration, drawing_class, first_line
from .attention import HANDED, PAGED, PROBED, PassAttention, ProbedAttention, register
from .falcon import FALCON, AttentionAsCache, register_falcon
from .names import with_cache

_PROBED_TOKENS: Final = 3
TRIED_TOKENS: Final = 6
_ROUNDING: Final[Mapping[torch.dtype, float]] = {torch.float32: 1e-3}
_MUCH_ROUNDING: Final = 0.1
"""Largest mean difference between two ways to the same result, relative to its mean size: by dtype, and for others."""
_STRETCHED: Final = ("dynamic", "longrope")
"""Rotary kinds whose angles depend on the longest sequence of a pass."""


class _HiddenOnly:
    """A decoder's output with hidden states only, for the head."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def keys(self) -> tuple[str, ...]:
        """Some heads unpack the output."""
        return ("last_hidden_state",)

    def __getitem__(self, at: Any) -> Any:
        return self.last_hidden_state if isinstance(at, str) else (self.last_hidden_state,)[at]

    def __getattr__(self, name: str) -> None:
        return None


class HeadInput(torch.nn.Module):
    """Replaces a model's decoder, so that the head gets the given hidden states."""

    def forward(self, *_unused: Any, inputs_embeds: torch.Tensor, **_asked: Any) -> _HiddenOnly:
        return _HiddenOnly(inputs_embeds)


class RotaryTable(torch.nn.Module):
    """The angles of a rotary module for all positions up to a length, so that they do not depend on the batch."""

    def __init__(self, module: Any, length: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        positions = torch.arange(length, device=device)[None]
        cos, sin = module(torch.empty(0, dtype=dtype, device=device), positions)
        self._cos, self._sin = cos[0], sin[0]

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cos[position_ids], self._sin[position_ids]


class Modules(msgspec.Struct):
    """A model split into its decoder, which ends with the last norm, and the rest, which makes logits."""

    decoder: Any
    head: Any
    tensors: Mapping[str, torch.Tensor]
    """Parameters and stored buffers by transformers' names."""
    conversions: Sequence[Any]
    """transformers' conversions of a checkpoint's names and tensors."""
    hand: Callable[[PassAttention], dict[str, Any]]
    """Makes the decoder's arguments for a pass's attention."""
    path: str
    """Path of the decoder in the model."""
    takes_positions: bool
    dtype: torch.dtype

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, attention: PassAttention) -> torch.Tensor:
        """int64 [tokens] each → [tokens, hidden]."""
        return self._hidden(tokens, positions, use_cache=False, **self.hand(attention))

    def hidden_alone(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Hidden states of a text of only these tokens."""
        return self._hidden(tokens, positions, use_cache=False)

    def hidden_of_row(self, tokens: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        """Hidden states of a row's next tokens behind those in transformers' ``cache``, which is extended."""
        return self._hidden(tokens, positions, use_cache=True, **with_cache(self.decoder.forward, cache))

    def _hidden(self, tokens: torch.Tensor, positions: torch.Tensor, **given: Any) -> torch.Tensor:
        if self.takes_positions:
            given["position_ids"] = positions[None]
        hidden: torch.Tensor = self.decoder(input_ids=tokens[None], return_dict=True, **given).last_hidden_state[0]
        return hidden

    @contextmanager
    def joined(self) -> Iterator[Any]:
        """The whole model as in transformers, with its own attention."""
        parent, _, last = self.path.rpartition(".")
        place, stands_in = self.head.get_submodule(parent), self.head.get_submodule(self.path)
        attention = self.head.config._attn_implementation
        setattr(place, last, self.decoder)
        self.head.set_attn_implementation("eager")
        try:
            yield self.head
        finally:
            self.head.set_attn_implementation(attention)
            setattr(place, last, stands_in)

    def are_alike(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two results of these modules differ by rounding only."""
        apart = (one.float() - other.float()).abs().mean()
        return bool(apart <= _ROUNDING.get(self.dtype, _MUCH_ROUNDING) * other.float().abs().mean())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] → [rows, vocabulary]."""
        logits: torch.Tensor = self.head(inputs_embeds=hidden[None], use_cache=False, return_dict=True).logits[0]
        return logits


def make_modules(
    config: Mapping[str, object], dtype: torch.dtype, device: torch.device, attention: str | None = PAGED
) -> Modules:
    """Make the modules of a config.json, with values in buffers only. Raises :class:`ConfigError`.

    ``attention``: name of the attention function; None: the modules' own attention.
    """
    import transformers
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.initialization import no_init_weights

    register()
    name = drawing_class(config).name
    which: Any = getattr(transformers, name)
    hand = _handed
    if name == FALCON:
        register_falcon()
        hand = _handed_to_falcon
    elif attention is not None and not getattr(which, "_supports_attention_backend", False):
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
    decoder = _decoder_of(model)
    path = next((path for path, module in model.named_modules() if module is decoder and path), "")
    takes_positions = "position_ids" in inspect.signature(decoder.forward).parameters
    if attention is not None and not takes_positions:
        raise ConfigError(f"{name} takes no positions from its caller")
    if not path:
        raise ConfigError(f"{name} has no decoder apart from its head")
    parent, _, last = path.rpartition(".")
    setattr(model.get_submodule(parent), last, HeadInput())
    return Modules(decoder, model, tensors, conversions, hand, path, takes_positions, dtype)


def _decoder_of(model: Any) -> Any:
    """The innermost part that takes tokens."""
    found = inner = model
    while hasattr(inner, "get_decoder") and (inner := inner.get_decoder()) is not found:
        if "input_ids" not in inspect.signature(inner.forward).parameters:
            break
        found = inner
    return model.base_model if found is model else found


def _handed(attention: PassAttention) -> dict[str, Any]:
    return {HANDED: attention}


def _handed_to_falcon(attention: PassAttention) -> dict[str, Any]:
    from transformers import FalconModel

    return with_cache(FalconModel.forward, AttentionAsCache(attention))


def probed(config: Mapping[str, object], spec: TransformersSpec) -> TransformersSpec:
    """The spec with the layers' real attention, or their cache if they attend by their own code.

    Found by a pass of a few tokens with weights of shared memory. Raises :class:`ConfigError` for a model that the
    paged cache does not support.
    """
    try:
        return _tried(_probed_at_once, config, spec)
    except ConfigError as error:
        try:
            return _tried(_probed_by_row, config, spec)
        except ConfigError as other:
            raise ConfigError(
                f"transformers' {spec.architecture} cannot run over a paged cache: {error}; nor a row at a time: "
                f"{other}"
            ) from error


def _tried(
    probe: Callable[[Mapping[str, object], TransformersSpec], TransformersSpec],
    config: Mapping[str, object],
    spec: TransformersSpec,
) -> TransformersSpec:
    try:
        with torch.inference_mode():
            return probe(config, spec)
    except ConfigError:
        raise
    except Exception as error:  # another library's code may raise anything
        raise ConfigError(f"{type(error).__name__}, {first_line(error)}") from error


def _probed_at_once(config: Mapping[str, object], spec: TransformersSpec) -> TransformersSpec:
    modules, tokens, positions = _to_probe(config, PROBED)
    probe = ProbedAttention()
    hidden = modules.hidden(tokens, positions, probe)
    if (count := len(probe.specs)) != len(spec.layers):
        raise ConfigError(f"{count} of its {len(spec.layers)} layers attend through transformers' attention interface")
    layers = (
        replace(layer, mixer=_within(probe.specs[number], spec.max_position))
        for number, layer in zip(sorted(probe.specs), spec.layers, strict=True)
    )
    return _sized(spec, modules, hidden, tuple(layers))


def _probed_by_row(config: Mapping[str, object], spec: TransformersSpec) -> TransformersSpec:
    """Find the layers of a decoder that runs row by row from what a first pass leaves in transformers' cache.

    In our paged cache, keys and values of a head have the width of the wider of the two.
    """
    from transformers import DynamicCache

    modules, tokens, positions = _to_probe(config, None)
    cache: Any = DynamicCache()
    hidden = modules.hidden_of_row(tokens, positions, cache)
    rows, layers = [], []
    for number, layer in enumerate(cache.layers):
        if not layer.is_initialized:
            continue
        k, v = layer.keys, layer.values
        if k.dim() != 4 or k.shape[:3] != (1, k.shape[1], _PROBED_TOKENS) or v.shape[:3] != k.shape[:3]:
            raise ConfigError("its layers keep other than a key and a value of each token and head")
        rows.append(KeptKeys(number, k.shape[3], v.shape[3]))
        mixer = replace(
            spec.layers[0].attention,
            heads=k.shape[1],
            kv_heads=k.shape[1],
            head_dim=max(k.shape[3], v.shape[3]),
            window=0,
        )
        layers.append(replace(spec.layers[0], mixer=mixer))
    if not rows:
        raise ConfigError("its layers keep nothing in transformers' cache")
    return replace(_sized(spec, modules, hidden, tuple(layers)), rows=tuple(rows))


def _to_probe(config: Mapping[str, object], attention: str | None) -> tuple[Modules, torch.Tensor, torch.Tensor]:
    """The modules with a few tokens and their positions."""
    cpu = torch.device("cpu")
    modules = make_modules(config, torch.bfloat16, cpu, attention)
    _share_zeros(modules)
    fix_positions(modules, 2 * _PROBED_TOKENS, torch.bfloat16, cpu)
    return modules, torch.zeros(_PROBED_TOKENS, dtype=torch.int64), torch.arange(_PROBED_TOKENS)


def _sized(
    spec: TransformersSpec, modules: Modules, hidden: torch.Tensor, layers: tuple[LayerSpec, ...]
) -> TransformersSpec:
    vocab_size = modules.logits(hidden).shape[-1]
    return replace(spec, layers=layers, vocab_size=vocab_size, hidden_size=hidden.shape[-1])


def check_decoder(modules: Modules, vocab_size: int, device: torch.device) -> None:
    """Check that the decoder alone, with positions from 0 on, computes what the whole model does. Raises
    :class:`WeightError`."""
    if modules.hand is _handed_to_falcon:  # its modules read only what they are passed
        return
    # from the middle of the vocabulary, since some models do not count positions of padding
    tokens = (torch.arange(TRIED_TOKENS, device=device) + vocab_size // 2) % vocab_size
    positions = torch.arange(TRIED_TOKENS, device=device)
    with torch.inference_mode():
        with modules.joined() as model:
            whole = model(input_ids=tokens[None], use_cache=False, return_dict=True).logits[0]
            hidden = modules.hidden_alone(tokens, positions)
        apart = modules.logits(hidden)
    if not modules.are_alike(apart, whole):
        raise WeightError(
            "its model says other things of a text than its decoder alone, given positions from 0 on, which is what "
            "runs here"
        )


def fix_positions(modules: Modules, length: int, dtype: torch.dtype, device: torch.device) -> None:
    """Replace rotary modules whose angles depend on the batch by tables of ``length`` positions.

    Raises :class:`ConfigError` for one that needs more than positions.
    """
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
    """Cache number by layer: all layers have one."""
    return {number: number for number in range(len(specs))}


def _within(mixer: AttentionSpec, longest: int) -> AttentionSpec:
    """The mixer without its window, if that is longer than the context."""
    return replace(mixer, window=0) if mixer.window >= longest else mixer


def _share_zeros(modules: Modules) -> None:
    """Replace parameters of equal shape by one tensor of zeros, so that a large model takes the memory of one layer."""
    zeros: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
    for part in (modules.decoder, modules.head):
        for parameter in part.parameters():
            key = parameter.shape, parameter.dtype
            if key not in zeros:
                zeros[key] = torch.zeros(parameter.shape, dtype=parameter.dtype)
            parameter.data = zeros[key]
