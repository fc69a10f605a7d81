"""From GGUF's tensor names to transformers', and small reads that need no torch."""

import re
import struct
from collections.abc import Mapping

from ..model_config.gguf_config import GGUFArchitecture
from .errors import CheckpointError
from .gguf_file import GGUFFile
from .gguf_types import READABLE, GGMLType

CONSUMED = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
"""Tensors that the configuration has taken in."""

_IGNORED = re.compile(r"blk\.\d+\.attn_rot_embd\.weight|blk\.\d+\.rope_freqs\.weight")
"""Buffers that old converters stored."""

_OUTER: Mapping[str, str] = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

_INNER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

MAX_FACTORS = 1 << 16


def hf_name(name: str, architecture: GGUFArchitecture) -> str | None:
    """transformers' name of a stored tensor; None for one that is no weight; a stranger keeps its own name."""
    if name in CONSUMED or _IGNORED.fullmatch(name):
        return None
    part = _BLOCK.fullmatch(name)
    if part is None:
        outer, _, suffix = name.rpartition(".")
        return f"{_OUTER[outer]}.{suffix}" if outer in _OUTER else name
    layer, inner, suffix = part.groups()
    target = _INNER.get(inner)
    if inner == "ffn_norm":
        target = architecture.norms.mlp_in
    if inner == "ffn_up" and architecture.fused:
        target = "mlp.gate_up_proj"
    return f"model.layers.{layer}.{target}.{suffix}" if target else name


def check_tensors(gguf: GGUFFile) -> None:
    """Raises :class:`CheckpointError` when a tensor's type cannot be decoded."""
    for tensor in gguf.tensors.values():
        if tensor.type not in READABLE:
            raise CheckpointError(
                f"Cannot load {gguf.path}: {tensor.name!r} is stored as {tensor.type.name}, "
                f"expected one of {', '.join(kind.name for kind in sorted(READABLE))}."
            )


def read_floats(gguf: GGUFFile, name: str) -> tuple[float, ...]:
    """The values of a small float32 vector. Raises :class:`CheckpointError`."""
    tensor = gguf.tensors[name]
    if tensor.type is not GGMLType.F32 or len(tensor.shape) != 1 or tensor.shape[0] > MAX_FACTORS:
        raise CheckpointError(f"Cannot load {gguf.path}: {name} is expected to be a short vector of F32.")
    return struct.unpack(f"<{tensor.shape[0]}f", gguf.read(tensor.offset, tensor.nbytes))
