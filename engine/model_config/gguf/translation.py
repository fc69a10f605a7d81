"""Reads a :class:`ModelSpec` from GGUF metadata by way of the equivalent config.json.

The reader of a family's config.json also reads its GGUF files: a row for the architecture maps fields to keys, and
gives the properties that files omit. Properties of layers are read from the file's tensors.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..hf.config import DECODERS
from ..spec.attention import AttentionSpec
from ..spec.layer import LayerSpec
from ..spec.mlp import SPLIT_MLP, UP_MLP, ExpertNames, MLPSpec, MoESpec
from ..spec.model import ModelSpec, alternating_layers, checked, with_mixers
from ..spec.mtp_form import DEEPSEEK, QWEN
from .fields import ReadFloats, Shapes, head_dim_of, once, rope_of


class GGUFFacts(msgspec.Struct, frozen=True):
    """The contents of a file."""

    fields: Fields
    """Under the prefix of its architecture."""
    shapes: Shapes
    layers: int
    """Without multi-token prediction layers."""
    read_floats: ReadFloats

    def having(self, tensor: str) -> list[bool]:
        """Which layers have this tensor."""
        return [f"blk.{layer}.{tensor}" in self.shapes for layer in range(self.layers)]

    def has(self, tensor: str) -> bool:
        """Whether a layer has this tensor."""
        return any(self.having(tensor))

    def outputs(self, tensor: str, default: int) -> int:
        """Outputs of this matrix, in the first layer that has it."""
        found = next((self.shapes[f"blk.{layer}.{tensor}"] for layer, has in enumerate(self.having(tensor)) if has), ())
        return found[1] if len(found) == 2 else default

    def count(self, key: str, default: int = 0) -> int:
        """The largest value of a count stored once or once a layer, where 0 is allowed."""
        value = self.fields.get(key)
        if isinstance(value, list):
            return max((Fields({key: each}).integer(key, least=0) for each in value), default=default)
        return self.fields.integer(key, default, least=0)

    def each(self, key: str) -> list[int]:
        """A count by layer, which may be stored once."""
        if not isinstance(self.fields.get(key), list):
            return [self.count(key)] * self.layers
        found = self.fields.numbers(key)
        if len(found) < self.layers:
            raise ConfigError(f"{key} is of {len(found)} layers, expected {self.layers}")
        return [int(number) for number in found[: self.layers]]

    def dense_first(self) -> int:
        """Number of layers before the first with experts."""
        sparse = self.having("ffn_gate_inp.weight")
        return sparse.index(True) if any(sparse) else self.layers

    def slides(self, period: int) -> list[bool]:
        """Which layers have the window: as listed, or all but every ``period``-th."""
        key = "attention.sliding_window_pattern"
        pattern = self.fields.get(key)
        if not isinstance(pattern, list):
            return [kind == "sliding" for kind in alternating_layers(self.layers, period)]
        if len(pattern) < self.layers:
            raise ConfigError(f"{key} is of {len(pattern)} layers, expected {self.layers}")
        return [bool(each) for each in pattern[: self.layers]]

    def layer_types(self, period: int) -> list[str]:
        """``layer_types`` by :meth:`slides`."""
        return ["sliding_attention" if each else "full_attention" for each in self.slides(period)]


Values = dict[str, object]
"""Fields of a config.json."""


class GGUFTranslation(msgspec.Struct, frozen=True):
    """How an architecture's metadata is converted to a config.json."""

    name: str
    """transformers' class."""
    keys: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Keys of fields that differ from :data:`KEYS`, or that only this architecture has."""
    unsaid: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Values of fields that the file may omit."""
    made: Callable[[GGUFFacts], Values] | None = None
    """Fields computed from several facts."""
    others: tuple[str, ...] = ()
    """Other classes that are stored under the same name."""
    named: Callable[[GGUFFacts], str] | None = None
    """Chooses among the classes by the file."""
    finish: Callable[[ModelSpec, GGUFFacts], ModelSpec] | None = None
    """Sets properties that a config.json cannot express."""
    common_rope: bool = True
    """Whether rotary settings are read in the common way; otherwise :attr:`made` has them."""
    permuted: bool = False
    """Whether query and key rows are stored as interleaved rotary pairs."""
    plus_one: bool = False
    """Whether norms are stored with 1 added."""


KEYS: Final[Mapping[str, str]] = {
    "hidden_size": "embedding_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
"""Keys of fields that all architectures store unchanged."""

_UNSAID: Final[Mapping[str, object]] = {
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": None,
    "norm_topk_prob": False,
    "n_shared_experts": 0,
    "use_sliding_window": False,
    "num_nextn_predict_layers": 0,
}
"""Defaults of missing keys."""

GGUF_EXPERTS: Final = ExpertNames(
    into=("mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight"), out="mlp.experts.down_proj.weight"
)
"""Names for GGUF's tensors of all experts, for which transformers has none."""
_FUSED_EXPERTS: Final = "mlp.experts.gate_up_proj.weight"
_SHARED: Final = "mlp.shared_experts"


def translated_spec(
    metadata: Mapping[str, object], shapes: Shapes, read_floats: ReadFloats, row: GGUFTranslation
) -> ModelSpec:
    """The spec, by the family's config.json reader. Raises :class:`ConfigError`."""
    fields = Fields(metadata, f"{Fields(metadata).text('general.architecture')}.")
    stored, drafts = fields.integer("block_count", most=MOST_LAYERS), fields.integer("nextn_predict_layers", 0, least=0)
    if drafts >= stored:
        raise ConfigError(f"{drafts} of its {stored} layers predict tokens further ahead, expected fewer")
    facts = GGUFFacts(fields, shapes, stored - drafts, read_floats)
    name = row.named(facts) if row.named else row.name
    spec = DECODERS[name].read(Fields(_values(metadata, facts, read_floats, row)), name)
    read = spec.mtp if spec.mtp in (DEEPSEEK, QWEN) else None  # others' form in GGUF files is not known
    spec = replace(spec, draft_layers=drafts, mtp=read)
    if row.common_rope and "rope_freqs.weight" in shapes:
        divisors = read_floats("rope_freqs.weight")
        for rope in {layer.mixer.rope for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)} - {None}:
            rotates = [isinstance(each.mixer, AttentionSpec) and each.mixer.rope == rope for each in spec.layers]
            assert rope is not None
            spec = with_mixers(spec, rotates, rope=replace(rope, frequency_divisors=divisors))
    if row.finish:
        spec = row.finish(spec, facts)
    layers = (_stored(layer, f"blk.{number}", shapes) for number, layer in enumerate(spec.layers))
    return checked(replace(spec, layers=tuple(layers)))


def _values(metadata: Mapping[str, object], facts: GGUFFacts, read_floats: ReadFloats, row: GGUFTranslation) -> Values:
    fields, shapes = facts.fields, facts.shapes
    hidden, heads = fields.integer("embedding_length"), facts.count("attention.head_count")
    if not heads and (facts.has("attn_q.weight") or facts.has("attn_qkv.weight")):
        raise ConfigError("attention.head_count is 0, expected more of a model with layers that attend")
    heads = heads or 1  # no layer uses it
    embedding = shapes.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise ConfigError("the tensor token_embd.weight is missing")
    made = row.made(facts) if row.made else {}
    head_dim = Fields(made).integer("head_dim", head_dim_of(fields, shapes, hidden, heads))
    values: Values = {
        **_UNSAID,
        "num_hidden_layers": facts.layers,
        "vocab_size": embedding[1],
        "num_attention_heads": heads,
        "num_key_value_heads": facts.count("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "intermediate_size": facts.count("feed_forward_length") or facts.outputs("ffn_up.weight", 1),
        "tie_word_embeddings": "output.weight" not in shapes,
        "attention_bias": facts.has("attn_q.bias"),
        "rope_parameters": _rope_table(fields, shapes, read_floats, head_dim),
        "bos_token_id": Fields(metadata).token_id("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(Fields(metadata).token_ids("tokenizer.ggml.eos_token_id")),
        "pad_token_id": Fields(metadata).token_id("tokenizer.ggml.padding_token_id"),
        **row.unsaid,
    }
    keys = {**KEYS, **row.keys}
    dense = fields.get("expert_count") == 0  # some store that they have none
    values |= {
        name: fields.get(key)
        for name, key in keys.items()
        if fields.has(key) and not (dense and key.startswith("expert_"))
    }
    for name in ("moe_intermediate_size", "num_experts", "num_experts_per_tok"):
        if name in values:
            values[name] = once(fields, keys[name])
    return values | made


def _rope_table(fields: Fields, shapes: Shapes, read_floats: ReadFloats, head_dim: int) -> Values:
    """``rope_parameters``."""
    rotating = fields.integer("rope.dimension_count", head_dim)
    rope = rope_of(fields, head_dim, shapes, read_floats)
    found: Values = {"rope_theta": rope.theta, "rope_type": rope.kind, "partial_rotary_factor": rotating / head_dim}
    if rope.kind in ("linear", "yarn"):
        found["factor"] = rope.factor
    if rope.kind == "longrope":
        found |= {
            "original_max_position_embeddings": rope.original_max_position,
            "short_factor": list(rope.short_factor),
            "long_factor": list(rope.long_factor),
            "attention_factor": rope.attention_factor,
        }
    if rope.kind == "yarn":
        scale = fields.number("rope.scaling.yarn_log_multiplier", 0.0)
        found |= {
            "original_max_position_embeddings": rope.original_max_position,
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "attention_factor": rope.attention_factor,
        }
        if scale:  # a tenth of the value stored, in float32
            found |= dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * scale, 6))
    return found


def _stored(layer: LayerSpec, prefix: str, shapes: Shapes) -> LayerSpec:
    """The layer with GGUF's names: separate gate and up, one tensor for each matrix of all experts."""
    mlp = layer.mlp
    if isinstance(mlp, MLPSpec):
        return replace(layer, mlp=_apart(mlp, *(SPLIT_MLP if mlp.gated else UP_MLP)))
    if not isinstance(mlp, MoESpec):
        return layer
    fused = f"{prefix}.ffn_gate_up_exps.weight" in shapes
    into = (_FUSED_EXPERTS,) if fused else GGUF_EXPERTS.into if mlp.gated else GGUF_EXPERTS.into[1:]
    usual = mlp.names[0]
    names = replace(GGUF_EXPERTS, router=usual.router, correction=usual.correction, into=into)
    shared = mlp.shared
    if shared is not None and mlp.part_norms is None:
        parts = (f"{_SHARED}.gate_proj", f"{_SHARED}.up_proj")
        shared = replace(shared, into=parts if shared.gated else parts[1:], out=f"{_SHARED}.down_proj")
    return replace(layer, mlp=replace(mlp, names=(names,), shared=shared))


def _apart(mlp: MLPSpec, *names: str) -> MLPSpec:
    """The network under these names, unless gate and up are fused."""
    return mlp if len(mlp.into) == len(names) else replace(mlp, into=names)
