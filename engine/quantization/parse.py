"""Parses a checkpoint's description of its quantisation to a :class:`.formats.QuantizedCheckpoint`. Torch-free.

Supported: ``quantization_config`` of config.json (transformers' FP8, MXFP8, FBGEMM and BitNet, GPTQ, AWQ,
compressed-tensors, ModelOpt), and the files beside it of ModelOpt and older GPTQ and AWQ programs. Other methods are
refused by name, with an alternative.
"""

import re
from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from ..model_config.config_fields import ConfigError, Fields
from .compressed_tensors import compressed_tensors
from .formats import (
    MX_BLOCK,
    Format,
    FP4Format,
    FP8Format,
    GroupedInt8Format,
    Int4Format,
    Int8Format,
    QuantizationRule,
    QuantizedCheckpoint,
)

_ONLINE = "serve the unquantised model with --quantization int8 or fp8"
_OTHER = "use a checkpoint in FP8, compressed-tensors, GPTQ, AWQ or GGUF"
_REFUSED: Mapping[str, str] = {
    "bitsandbytes": _ONLINE,
    "bitsandbytes_4bit": _ONLINE,
    "bitsandbytes_8bit": _ONLINE,
    "eetq": _ONLINE,
    "quanto": _ONLINE,
    "auto-round": "export it from AutoRound in its format auto_gptq or auto_awq",
    "torchao": _ONLINE,
    "hqq": _ONLINE,
    "marlin": "use the GPTQ checkpoint that it was made from",
    "gptq_marlin": "set quant_method to gptq",
    "awq_marlin": "set quant_method to awq",
    "sparseml": "use a dense compressed-tensors checkpoint",
    "nvfp4": _OTHER,
}
"""Known unsupported methods, with an alternative."""

FILES: Mapping[str, str] = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""Files beside config.json that describe a quantisation, with their method."""

_EXPERTS = r"re:.*\.mlp\.experts\.(gate_up|down)_proj$"
"""The MXFP4 weights of gpt-oss."""
_FP4_EXPERTS = r"re:.*\.experts\.\d+\.w[123]$"
"""Names of DeepSeek-V4's experts."""
_TABLES = r"re:.*\.engram\.embed$"
"""Names of DeepSeek-V4.1's tables of n-grams."""
_OTHER_FP4_EXPERTS = r"re:.*\.experts\.\d+\.(gate|up|down)_proj$"
"""Names of MiMo-V2.6's and Ling 3.0's."""

SUPPORTED = ("fp8", "mxfp8", "fbgemm_fp8", "compressed-tensors", "gptq", "awq", "modelopt", "mxfp4", "bitnet")

MAX_PATTERNS = 4096
MAX_PATTERN_LENGTH = 512


def parse_quantization(
    config: Mapping[str, object], beside: Mapping[str, object] | None = None, method: str = "modelopt"
) -> QuantizedCheckpoint | None:
    """The quantisation in config.json, or else in one of :data:`FILES`; None for an unquantised checkpoint.

    ``beside``: that file's content. ``method``: its method. Raises :class:`ConfigError` for an unsupported method or
    contradictory fields.
    """
    text = config.get("text_config")  # which alone says so in Kimi's files
    table = next((found for each in (config, text) if isinstance(each, Mapping) and (found := _table_of(each))), None)
    if table is None and beside is not None:
        found = beside.get("quantization") if method == "modelopt" else beside
        table = {"quant_method": method, **found} if isinstance(found, Mapping) else None
    if not table:
        return None
    if not isinstance(table, Mapping):
        raise ConfigError("quantization_config is not a table")
    fields = Fields(table, "")
    method = fields.text("quant_method", "").lower()
    match method:
        case "fp8" | "mxfp8":
            if method == "mxfp8":
                fields = Fields({"weight_block_size": [1, MX_BLOCK], **fields.values}, "")
            return _fp8(fields, fields.text("expert_dtype", Fields(config).text("expert_dtype", "fp8")))
        case "fbgemm_fp8":
            # activation_scale_ub bounds the scales of inputs: without it, large ones are rounded and not cut
            rule = QuantizationRule(("Linear",), FP8Format("channel", "token"))
            return QuantizedCheckpoint("fbgemm_fp8", (rule,), (*_unquantised(fields), "lm_head"))
        case "compressed-tensors":
            return compressed_tensors(fields, patterns)
        case "gptq":
            return _gptq(fields)
        case "awq":
            return _awq(fields)
        case "modelopt" | "modelopt_fp8" | "modelopt_fp4":
            return _modelopt(fields)
        case "mxfp4":
            rule = QuantizationRule((_EXPERTS,), FP4Format("mxfp4", "gpt-oss"))
            return QuantizedCheckpoint("mxfp4", (rule,), _unquantised(fields))
        case "bitnet":
            return _bitnet(fields)
        case "":
            raise ConfigError(f"quantization_config names no quant_method, expected one of {', '.join(SUPPORTED)}")
    advice = _REFUSED.get(method, _OTHER)
    raise ConfigError(f"its weights are quantised by {method!r}, which is not read; {advice}")


def _table_of(config: Mapping[str, object]) -> object:
    return config.get("quantization_config") or config.get("compression_config")


def _fp8(fields: Fields, experts: str) -> QuantizedCheckpoint:
    """transformers' ``fp8``: square blocks with ``weight_scale_inv``, or one scale a tensor. ``experts``: the type of
    experts' weights."""
    if experts not in ("fp8", "fp4"):
        raise ConfigError(f"expert_dtype is {experts[:40]!r}, expected fp8 or fp4")
    scheme = fields.text("activation_scheme", "dynamic")
    if scheme not in ("dynamic", "static"):
        raise ConfigError(f"activation_scheme is {scheme!r}, expected dynamic or static")
    if fields.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise ConfigError(f"fmt is {fields.text('fmt')!r}, expected e4m3")
    block = fields.values.get("weight_block_size")
    form = FP8Format("tensor", "tensor" if scheme == "static" else "token")
    if block is not None:
        if not (isinstance(block, list | tuple) and len(block) == 2 and all(_is_size(side) for side in block)):
            raise ConfigError(f"weight_block_size is {block!r}, expected two sizes such as [128, 128]")
        if scheme == "static":
            raise ConfigError("weight_block_size with activation_scheme static, expected dynamic")
        form = FP8Format("block", "group", "weight_scale_inv", (int(block[0]), int(block[1])))
    of_experts = (QuantizationRule((_FP4_EXPERTS,), FP4Format("mxfp4", "deepseek")),) if experts == "fp4" else ()
    for field, ending in (("store_dtype", "weight_scale"), ("routed_experts_quant_method", "weight_scale_inv")):
        if not fields.has(field):
            continue
        if (stored := fields.text(field)) != "mxfp4" or fields.integer("mxfp4_block_size", 32) != 32:
            raise ConfigError(f"{field} is {stored[:40]!r}, expected 'mxfp4' in blocks of 32")
        of_experts = (QuantizationRule((_OTHER_FP4_EXPERTS,), FP4Format("mxfp4", "deepseek", ending)),)
    of_tables = QuantizationRule((_TABLES,), replace(form, granularity="block", block=(1, MX_BLOCK)))
    rules = (*of_experts, of_tables, QuantizationRule(("Linear",), form))
    return QuantizedCheckpoint("fp8", rules, (*_unquantised(fields), "lm_head"))


def _gptq(fields: Fields) -> QuantizedCheckpoint:
    stored = fields.text("checkpoint_format", fields.text("format", "gptq"))
    if fields.flag("is_marlin_format"):
        stored = "marlin"
    if stored not in ("gptq", "gptq_v2"):
        raise ConfigError(f"GPTQ stored as {stored!r}, expected gptq or gptq_v2; {_OTHER}")
    offset = 0 if stored == "gptq_v2" else 1
    ignore = [] if fields.flag("lm_head") else ["lm_head"]
    rules = []
    for pattern, own in (fields.table("dynamic") or {}).items():
        (target,) = patterns([f"re:{pattern.removeprefix('-:').removeprefix('+:')}"], "dynamic")
        if pattern.startswith("-:"):
            ignore.append(target)
        elif isinstance(own, Mapping):
            rules.append(QuantizationRule((target,), _gptq_format(Fields({**fields.values, **own}), offset)))
        else:
            raise ConfigError(f"dynamic[{pattern[:60]!r}] is no table of settings")
    rules.append(QuantizationRule(("Linear",), _gptq_format(fields, offset)))
    return QuantizedCheckpoint("gptq", tuple(rules), tuple(ignore))


def _gptq_format(fields: Fields, offset: int) -> Int4Format | GroupedInt8Format:
    bits = fields.integer("bits")
    if bits not in (4, 8):
        raise ConfigError(f"GPTQ with {bits} bits, expected 4 or 8; {_OTHER}")
    return (Int4Format if bits == 4 else GroupedInt8Format)(
        packing="gptq",
        group=_group(fields),
        symmetric=False,  # zero points are stored in either case
        act_order=fields.flag("desc_act"),
        zero_offset=offset,
    )


def _awq(fields: Fields) -> QuantizedCheckpoint:
    bits = fields.integer("bits", fields.integer("w_bit", 4))
    if bits != 4:
        raise ConfigError(f"AWQ with {bits} bits, expected 4; {_OTHER}")
    version = fields.text("version", fields.text("checkpoint_format", "gemm")).lower()
    if version != "gemm":
        raise ConfigError(f"AWQ of version {version!r}, expected gemm")
    # without zero points, all stored ones are 8
    form = Int4Format(packing="awq", group=_group(fields, "q_group_size"), symmetric=False)
    return QuantizedCheckpoint("awq", (QuantizationRule(("Linear",), form),), (*_unquantised(fields), "lm_head"))


def _bitnet(fields: Fields) -> QuantizedCheckpoint:
    """Ternary weights, packed (``offline``) or rounded at load (``online``), with inputs rounded by token."""
    linear = fields.text("linear_class", "bitlinear")
    mode = fields.text("quantization_mode", "offline")
    if linear not in ("bitlinear", "autobitlinear"):
        raise ConfigError(f"linear_class is {linear!r}, expected bitlinear or autobitlinear")
    if mode not in ("offline", "online"):
        raise ConfigError(f"quantization_mode is {mode!r}, expected offline or online")
    if fields.flag("use_rms_norm"):
        raise ConfigError("use_rms_norm is set, expected false: no norm stands before each product")
    packed: Literal["divided", "multiplied"] = "divided" if linear == "bitlinear" else "multiplied"
    online = linear == "autobitlinear" and mode == "online"
    form = Int8Format("tensor", "token", "rounded" if online else packed)
    return QuantizedCheckpoint("bitnet", (QuantizationRule(("Linear",), form),), (*_unquantised(fields), "lm_head"))


def _modelopt(fields: Fields) -> QuantizedCheckpoint:
    fields = Fields(fields.table("quantization") or fields.values)  # some copy their own file into config.json
    algorithm = fields.text("quant_algo", "").upper()
    formats: dict[str, Format] = {
        "FP8": FP8Format("tensor", "tensor"),
        "FP8_PER_CHANNEL_PER_TOKEN": FP8Format("channel", "token"),
        "FP8_PB_WO": FP8Format("block", "none"),
        "NVFP4": FP4Format("nvfp4", "modelopt"),
    }
    if algorithm not in formats:
        raise ConfigError(
            f"ModelOpt's {algorithm or 'unnamed algorithm'} is not read, expected {', '.join(formats)}; {_OTHER}"
        )
    excluded = patterns(fields.values.get("exclude_modules") or fields.values.get("ignore"), "exclude_modules")
    cache = fields.values.get("kv_cache_quant_algo") or fields.values.get("kv_cache_scheme")
    if cache is not None and not isinstance(cache, Mapping) and str(cache).upper() != "FP8":
        raise ConfigError(f"its KV cache is meant to be {cache!r}, expected FP8 or none")
    return QuantizedCheckpoint(
        "modelopt",
        (QuantizationRule(("Linear",), formats[algorithm]),),
        (*excluded, "lm_head"),
        kv_cache_fp8=cache is not None,
    )


def _unquantised(fields: Fields) -> tuple[str, ...]:
    """transformers' list of unquantised modules, or AutoFP8's."""
    name = "modules_to_not_convert" if fields.values.get("modules_to_not_convert") else "ignored_layers"
    return patterns(fields.values.get(name), name)


def patterns(found: object, name: str) -> tuple[str, ...]:
    """A bounded list of valid patterns. Raises :class:`ConfigError`."""
    if found is None:
        return ()
    if not isinstance(found, list | tuple) or len(found) > MAX_PATTERNS:
        raise ConfigError(f"{name} is expected to be a list of at most {MAX_PATTERNS} names")
    for pattern in found:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN_LENGTH:
            raise ConfigError(f"{name} holds {str(pattern)[:60]!r}, expected a name")
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error as error:
                raise ConfigError(f"{name} holds {pattern!r}, which is no regular expression: {error}") from error
    return tuple(found)


def _group(fields: Fields, other: str = "") -> int:
    value = fields.values.get("group_size", fields.values.get(other) if other else None)
    if value == -1:
        return 0
    return fields.integer("group_size" if "group_size" in fields.values or not other else other, 128)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 20
