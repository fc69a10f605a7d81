"""Reads ``adapter_config.json``, PEFT's description of a LoRA adapter. Torch-free."""

import json
import math
import re
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from .errors import CheckpointError

MAX_CONFIG_BYTES: Final = 1 << 20
_T = TypeVar("_T", int, float)
_NAME: Final = re.compile(r"\^?[\w.]+")
"""A key of ``rank_pattern`` or ``alpha_pattern``: a module's name, or the end of one."""
_ANY_MODULE: Final = ".*."
"""Before a name that is the end of any module's; PEFT writes it for experts."""
_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initialisations that change the model's own weights."""
_MOST_ALPHA: Final = 1e6
"""Larger values exceed half precision with the first weight."""
_TELLS_OUTPUTS: Final = 0, 19, 1
"""The first PEFT version that reads the outputs of [experts, outputs, inputs] as such."""
_MUST_BE_EMPTY: Final[Mapping[str, str]] = {
    "use_dora": "DoRA",
    "lora_bias": "a bias of its own",
    "modules_to_save": "whole modules in place of the model's",
    "layer_replication": "layers that are repeated",
    "trainable_token_indices": "embeddings of single tokens",
    "use_qalora": "QALoRA",
    "alora_invocation_tokens": "an activated LoRA",
    "arrow_config": "Arrow",
    "use_bdlora": "BD-LoRA",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "velora_config": "VeLoRA",
}


class AdapterConfig(msgspec.Struct, frozen=True):
    """The scale of the low-rank products."""

    rank: int
    alpha: float
    rslora: bool
    """Whether the scale divides by the root of the rank, not by the rank."""
    ranks: Mapping[str, int]
    """By module name, or end of one."""
    alphas: Mapping[str, float]
    parameters: tuple[str, ...] = ()
    """Ends of the names of adapted parameters: those of all experts, or a router's."""
    turns_parameters: bool = False
    """Whether the adapter may come from a PEFT that takes the outputs of [experts, outputs, inputs] for the inputs."""

    def rank_of(self, module: str) -> int:
        """The rank of a module's matrices."""
        return _matching(self.ranks, module, self.rank)

    def scale_of(self, module: str) -> float:
        rank = self.rank_of(module)
        return _matching(self.alphas, module, self.alpha) / (math.sqrt(rank) if self.rslora else rank)


def parse_adapter_config(text: bytes) -> AdapterConfig:
    """Parse the file. Raises :class:`.errors.CheckpointError` for adapters that cannot be served."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"it is not valid JSON ({error})") from error
    if not isinstance(fields, dict):
        raise _wrong("expected a JSON object")
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise _wrong(f"peft_type is {kind!r}, expected 'LORA'")
    for name, what in _MUST_BE_EMPTY.items():
        if fields.get(name):
            raise _wrong(f"{name} is set: {what} is not served; train the adapter without")
    if (bias := fields.get("bias", "none")) not in ("none", None):
        raise _wrong(f"bias is {bias!r}: biases are not adapted here, expected 'none'")
    begun = fields.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGES_BASE):
        raise _wrong(
            f"init_lora_weights is {begun!r}, which changes the model's own weights: convert the adapter with "
            "path_initial_model_for_weight_conversion"
        )
    return AdapterConfig(
        _rank("r", fields.get("r")),
        _alpha("lora_alpha", fields.get("lora_alpha")),
        bool(fields.get("use_rslora")),
        {key: _rank(f"rank_pattern[{key!r}]", value) for key, value in _pattern(fields, "rank_pattern").items()},
        {key: _alpha(f"alpha_pattern[{key!r}]", value) for key, value in _pattern(fields, "alpha_pattern").items()},
        _parameters(fields),
        _version(fields) < _TELLS_OUTPUTS,
    )


def _parameters(fields: Mapping[str, object]) -> tuple[str, ...]:
    found = fields.get("target_parameters") or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise _wrong("target_parameters is no list of names")
    return tuple(found)


def _version(fields: Mapping[str, object]) -> tuple[int, ...]:
    """PEFT's version, which it writes from 0.18 on."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", str(fields.get("peft_version") or ""))
    return tuple(map(int, found.groups())) if found else (0,)


def _pattern(fields: Mapping[str, object], name: str) -> dict[str, object]:
    found = fields.get(name) or {}
    if not isinstance(found, dict):
        raise _wrong(f"{name} is no object")
    plain = {str(key).replace("\\.", ".").removeprefix(_ANY_MODULE): value for key, value in found.items()}
    for key in plain:
        if _NAME.fullmatch(key) is None:
            raise _wrong(f"{name} has the key {key[:80]!r}; expected the name of a module, no other pattern is read")
    return plain


def _matching(values: Mapping[str, _T], module: str, otherwise: _T) -> _T:
    """The first value whose key is the module or an end of it."""
    parts: list[str] = module.split(".")
    ends = {f"^{module}", *(".".join(parts[first:]) for first in range(len(parts)))}
    return next((value for key, value in values.items() if key in ends), otherwise)


def _rank(name: str, value: object) -> int:
    if type(value) is not int or value < 1:
        raise _wrong(f"{name} is {value!r}, expected a whole number from 1 on")
    return value


def _alpha(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST_ALPHA <= value <= _MOST_ALPHA:
        raise _wrong(f"{name} is {value!r}, expected a number of at most {_MOST_ALPHA:,.0f}")
    return float(value)


def _wrong(why: str) -> CheckpointError:
    return CheckpointError(f"adapter_config.json: {why}")
