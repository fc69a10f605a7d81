"""Reads the config.json of DeepSeek-V4.1."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from ..config_fields import MOST_LAYERS, ConfigError, Fields
from ..spec.compressed_attention import CandidatesSpec, CompressedAttentionSpec, EntryIndexSpec
from ..spec.layer import LayerSpec
from ..spec.model import ModelSpec
from ..spec.mtp_form import StagesForm
from ..spec.streams import ENGRAM, HyperSpec, NGramSpec, primes_from
from .common import expect
from .deepseek4 import finished, plain_mixer, rotations, scored_experts, started

_DEFAULTS: Final[Mapping[str, object]] = {"head_dim": 512, "q_lora_rank": 1280, "index_n_heads": 32}
_RATIOS: Final = (0, 1, 2)
_OF_PICTURES: Final = "ffn.gate.bias_vl"
"""The correction of experts' scores for tokens of pictures."""
_MOST_ROWS: Final = 1 << 31
"""Of a table of n-grams: more than any has."""


def deepseek_v41(fields: Fields, name: str) -> ModelSpec:
    """DeepSeek V4 whose layers share entries, and the choice of them; whose parts take sums of the streams by weights
    of the part before; and whose first layers look n-grams up."""
    text, vision = fields.table("text_config") or {}, Fields(fields.table("vision_config") or {})
    outer = {key: value for key, value in fields.values.items() if key not in ("text_config", "vision_config")}
    fields = Fields({**_DEFAULTS, **outer, **text})
    if depth := vision.integer("num_hidden_layers", 0, least=0, most=MOST_LAYERS):
        fields = Fields({**fields.values, "vision_n_layers": depth})
    expect(fields, {"num_hash_layers": 0, "gate_temp": 1.0})
    fields, spec = started(fields, name)
    mixers = _mixers(fields, replace(plain_mixer(fields, spec), norms_queries=False), len(spec.layers))
    network = scored_experts(fields)
    if depth:
        network = replace(network, media_correction=_OF_PICTURES)
    spec = finished(fields, spec, mixers, [network] * len(spec.layers))
    assert isinstance(spec.streams, HyperSpec)
    layers = _with_ngrams(fields, spec, spec.streams.streams)
    spec = replace(spec, layers=layers, streams=replace(spec.streams, head="", delayed=True), unused=())
    return _with_stages(fields, spec) if fields.has("dspark_target_layer_ids") else replace(spec, draft_prefix="")


def beside_a_tower(spec: ModelSpec) -> ModelSpec:
    """The spec with the names that :mod:`.text_names` gives the tensors of a text part: it puts a prefix before those
    of layers, and takes that of the second norm for Mistral's."""
    layers = (replace(layer, norms=replace(layer.norms, mlp_in="post_attention_layernorm")) for layer in spec.layers)
    return replace(spec, layers=tuple(layers), prefix="model.layers", final_norm="model.norm")


def _with_stages(fields: Fields, spec: ModelSpec) -> ModelSpec:
    """The spec with stages that draft blocks, of layers that see a window and have experts of their own."""
    taps = _numbers(fields, "dspark_target_layer_ids", len(spec.layers))
    if not taps or any(spec.layers[number].ngrams is not None for number in taps):
        raise ConfigError(f"dspark_target_layer_ids is {taps}, expected layers without n-grams")
    mask = fields.token_id("dspark_noise_token_id")
    if mask is None or mask >= spec.vocab_size:
        raise ConfigError(f"dspark_noise_token_id is {mask}, expected one of {spec.vocab_size} tokens")
    scored = scored_experts(fields)
    experts = fields.integer("dspark_n_routed_experts", scored.experts)
    chosen = fields.integer("dspark_num_experts_per_tok", scored.router.top_k)
    network = replace(scored, experts=experts, router=replace(scored.router, top_k=chosen))
    mixer = replace(plain_mixer(fields, spec), norms_queries=False, caches_tokens=True)
    unused = (_OF_PICTURES,) if fields.has("vision_n_layers") else ()
    stages = StagesForm(
        fields.integer("num_nextn_predict_layers", 3, most=16),
        tuple(taps),
        fields.integer("dspark_block_size", most=64),
        mask,
        fields.integer("dspark_markov_rank", 256),
    )
    return replace(spec, stages=stages, mtp_layer=LayerSpec(mixer, network, spec.layers[0].norms, unused=unused))


def _mixers(fields: Fields, mixer: CompressedAttentionSpec, layers: int) -> list[CompressedAttentionSpec]:
    """The attention of each layer; ``mixer``: without entries."""
    ratios = [int(ratio) for ratio in fields.numbers("compress_ratios")]
    if len(ratios) < layers or not {*ratios} <= {*_RATIOS}:
        raise ConfigError(f"compress_ratios is {ratios}, expected {_RATIOS} for each of {layers} layers")
    sources, indexes = (_numbers(fields, field, layers) for field in ("kv_source_layer_ids", "index_source_layer_ids"))
    if not {*sources} <= {*indexes}:
        raise ConfigError(f"kv_source_layer_ids is {sources}, expected some of index_source_layer_ids, {indexes}")
    first = fields.integer("candidate_source_layer_id", -1, least=-1)
    if first >= 0 and first not in indexes:
        raise ConfigError(f"candidate_source_layer_id is {first}, expected one of index_source_layer_ids, {indexes}")
    _, rope = rotations(fields, mixer.rope_dim)
    index = EntryIndexSpec(
        fields.integer("index_n_heads"),
        fields.integer("index_head_dim", 128),
        fields.integer("index_topk", 512),
        of_entries=True,
    )
    found = []
    for layer, ratio in enumerate(ratios[:layers]):
        if not ratio:
            if layer in indexes:
                raise ConfigError(f"compress_ratios is 0 for layer {layer} of index_source_layer_ids")
            found.append(mixer)
            continue
        source = max((number for number in sources if number <= layer), default=-1)
        if source < 0 or ratios[source] != ratio:
            raise ConfigError(
                f"layer {layer} has entries of {ratio} tokens, expected some of as many in the layer before it of "
                f"kv_source_layer_ids, {sources}"
            )
        own = replace(index, shared=layer not in indexes)
        if 0 <= first <= layer and layer in indexes:
            if ratios[first] != ratio:
                raise ConfigError(f"layer {layer} has entries of {ratio} tokens, candidates are of {ratios[first]}")
            size, blocks = (fields.integer(f"candidate_{which}") for which in ("block_size", "topk_blocks"))
            own = replace(own, candidates=CandidatesSpec(size, blocks, layer == first))
        shares = -1 if source == layer else source
        found.append(replace(mixer, ratio=ratio, index=own, rope=rope, shares=shares, biased=False))
    return found


def _numbers(fields: Fields, field: str, layers: int) -> list[int]:
    """Ascending numbers of layers. Raises :class:`ConfigError`."""
    found = [int(number) for number in fields.numbers(field)] if fields.has(field) else []
    if found != sorted({*found}) or any(not 0 <= number < layers for number in found):
        raise ConfigError(f"{field} is {found}, expected ascending numbers of {layers} layers")
    return found


def _with_ngrams(fields: Fields, spec: ModelSpec, streams: int) -> tuple[LayerSpec, ...]:
    """The layers, some of which look n-grams up."""
    layers = [*spec.layers]
    numbers = _numbers(fields, "engram_layer_ids", len(layers))
    rows = [int(each) for each in fields.numbers("engram_num_embeddings")] if numbers else []
    if len(rows) != len(numbers) or any(not 0 < each < _MOST_ROWS for each in rows):
        raise ConfigError(f"engram_num_embeddings is {rows}, expected the rows of each of {len(numbers)} layers")
    for at, (number, each) in enumerate(zip(numbers, rows, strict=True)):
        layers[number] = replace(layers[number], ngrams=_ngrams(fields, spec, streams, number, at, each))
    return tuple(layers)


def _ngrams(fields: Fields, spec: ModelSpec, streams: int, layer: int, at: int, rows: int) -> NGramSpec:
    """The n-grams of a layer, the ``at``-th that has some."""
    tokens = fields.integer("engram_max_ngram_size", least=2, most=16)
    count = (tokens - 1) * fields.integer("engram_n_heads", most=256)
    sizes = primes_from(fields.integer("engram_vocab_size", most=_MOST_ROWS), at * count, count)
    if sum(sizes) > rows:
        raise ConfigError(
            f"engram_num_embeddings is {rows} for layer {layer}, expected at least the {sum(sizes)} rows of its tables"
        )
    folded = fields.integer("engram_compressed_vocab_size")
    filler = fields.integer("engram_pad_token_id", 2, least=0)
    if filler >= spec.vocab_size or folded > spec.vocab_size:
        raise ConfigError(
            f"engram_pad_token_id is {filler} and engram_compressed_vocab_size {folded}, expected numbers of "
            f"{spec.vocab_size} tokens"
        )
    return NGramSpec(
        vocab_size=spec.vocab_size,
        streams=streams,
        dim=count * fields.integer("engram_head_dim"),
        multipliers=_multipliers(folded, tokens, layer),
        sizes=sizes,
        rows=rows,
        shards=1,
        eos=filler,
        width=0,
        ends=False,
        folded=folded,
        silent=fields.token_id("image_token_id") if fields.has("vision_n_layers") else None,
        name="engram",
        form=ENGRAM,
    )


def _multipliers(folded: int, count: int, layer: int) -> tuple[int, ...]:
    """The odd factors of tokens in the hashes of a layer, below 2^63 / ``folded``: by numpy's default generator."""
    import numpy as np  # late: no other description of a model needs it

    most = max(1, ((1 << 63) - 1) // folded // 2)
    drawn: Sequence[int] = np.random.default_rng(10007 * layer).integers(0, most, count, dtype=np.int64).tolist()
    return tuple(2 * number + 1 for number in drawn)
