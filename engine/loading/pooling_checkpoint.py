"""Opens a folder as a pooling model: an encoder, or a decoder that does not generate."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import replace

from stentor.protocols.ipc.config import ModelImpl

from ..model_config.config_fields import ConfigError, Fields, UnknownArchitectureError
from ..model_config.encoders.hf import encoder_config_from_hf, is_encoder
from ..model_config.encoders.pooling import (
    JINA_LIST,
    JINA_VL,
    NEMOTRON_VL,
    MarkedVectors,
    PoolingConfig,
    ScoreHead,
    SparseHead,
    TokenVectors,
    TokenWeights,
    WholeSparseHead,
    matryoshka_of,
    native_dimensions,
    projection_of,
    score_head,
    sparse_head,
    stated_pooling,
    yes_no_head,
)
from ..model_config.encoders.retrievers import COLQWEN3_5_NAME, retriever_from_hf
from ..model_config.encoders.sentence import Dense, Normalized, PoolingMode, SentenceModules, SpladeForm
from ..model_config.encoders.transformers_config import TransformersEncoder, transformers_encoder
from ..model_config.hf.config import model_spec_from_hf
from ..model_config.hf.qwen3_asr import in_transformers_form
from ..model_config.hf.text_part import JINA_V4, MEDIA_FAMILIES
from ..model_config.registry import asked_of_transformers, run_by_transformers
from ..model_config.spec.attention import AttentionSpec
from ..model_config.spec.encoder import EncoderConfig
from ..model_config.spec.latent_attention import LatentAttentionSpec
from ..model_config.spec.model import Backbone, ModelSpec, TaskAdapters, checked, with_mixers
from ..quantization.stored_tensors import correct_by_tensors
from .adapter_config import parse_adapter_config
from .checkpoint import Checkpoint, described_quantization, sizes_of, text_and_tower
from .errors import CheckpointError
from .generation_config import GenerationConfig
from .kind import is_named_reranker
from .safetensors_index import read_json
from .sentence_modules import read_sentence_modules
from .weight_files import weight_format, weight_index

_BGE_M3: Final = ("sparse_linear.pt", "colbert_linear.pt")
_CAUSAL: Final = "ForCausalLM"
_SEES: Final = "ForConditionalGeneration"
_MASKED: Final = "ForMaskedLM"
_HEADS: Final = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForProcessRewardModel",
    "ForRewardModel",
    _MASKED,
    "Model",
)
"""Endings of decoder architectures that do not generate text."""
_PAGE_BIAS: Final = ("custom_text_proj.bias", "embedding_proj_layer.bias")
_STATE_POOLING: Final = ("LlamaBidirectionalModel", NEMOTRON_VL)
_OF_TASKS: Final = (JINA_V4, "JinaEmbeddingsV5Model")
_ADAPTERS: Final = "adapters"
_ADAPTER_CONFIG: Final = "adapter_config.json"
_ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_RETRIEVAL: Final = "retrieval"
"""The task of its requests that name none."""
_MOST_TASKS: Final = 16
_JINA_V4_PROMPTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("query", "retrieval", "text-matching", "code"), "Query: "),
    "document": "Passage: ",
}
"""Only in its authors' code, where texts that are to match have one prompt."""
_OF_FIRST: Final = "Lfm2BidirectionalModel"
"""Its vectors are of the first token."""
_WRITTEN_AS: Final[Mapping[str, str]] = {JINA_VL: "Qwen2VLForConditionalGeneration", JINA_LIST: "Qwen3ForCausalLM"}
"""Decoder architectures of embedders whose names do not tell."""
_QWEN3_RERANKER: Final = (9693, 2152)
"""Qwen3's tokens ``yes`` and ``no``."""
_BGE_RERANKER: Final = "Yes"
"""The token whose logit is the score of BGE's reranker on Gemma."""
_JINA_MARKS: Final = ("<|embed_token|>", "<|rerank_token|>")
"""Behind each document and behind the query."""


def pooling_config(folder: Path, pooling: PoolingMode | None = None, model_impl: ModelImpl = "auto") -> PoolingConfig:
    """The pooling config of a folder. ``pooling`` overrides the files; ``model_impl``: whose modelling code runs the
    model.

    Raises :class:`CheckpointError`, with one line, for other models and unsupported ones.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"Cannot load {folder}: config.json is missing.")
    try:
        return _read(folder, in_transformers_form(read_json(file)), pooling, model_impl)
    except ConfigError as error:
        raise CheckpointError(f"Cannot load {folder}: {error}.") from error


def open_pooling(folder: Path, pooler: str = "", model_impl: ModelImpl = "auto") -> Checkpoint:
    """Open a folder with safetensors or torch's pytorch_model.bin; arguments as for :func:`pooling_config`, ``pooler``
    "" for None."""
    named: PoolingMode | None = next((mode for mode in get_args(PoolingMode) if mode == pooler), None)
    if pooler and named is None:
        raise CheckpointError(
            f"There is no pooling {pooler[:40]!r}: expected one of {', '.join(get_args(PoolingMode))}."
        )
    config = pooling_config(folder, named, model_impl)
    described = read_json(folder / "config.json")
    quantized = described_quantization(folder, described)
    tensors = weight_index(folder)
    tower = None
    if config.backbone.text_part:
        tower, tensors = text_and_tower(folder, tensors, described)
    if quantized is not None:
        quantized = correct_by_tensors(quantized, {tensor.name: tensor.dtype for tensor in tensors})
    stored = sizes_of(tensors)
    files = tuple(dict.fromkeys(tensor.file for tensor in tensors))
    return Checkpoint(
        format=weight_format(files),
        folder=folder,
        files=files,
        config=config,
        dtype=next(iter(stored)),
        defaults=GenerationConfig(()),
        stored_bytes=stored,
        quantized=quantized,
        tower=tower,
    )


def _read(
    folder: Path, config: Mapping[str, object], pooling: PoolingMode | None, model_impl: ModelImpl
) -> PoolingConfig:
    retriever = retriever_from_hf(config)
    masked = _named_masked(config) and _is_splade(folder)
    backbone = _backbone(config, model_impl, masked=masked) if retriever is None else retriever[0]
    if backbone.architecture in _OF_TASKS:
        backbone = replace(backbone, adapters=_tasks(folder, config))
    causal = isinstance(backbone, ModelSpec) and not backbone.bidirectional
    ends = causal or (isinstance(backbone, EncoderConfig) and backbone.family == "clip")
    modules = read_sentence_modules(folder, causal=ends)
    if not (folder / "modules.json").is_file():
        if _has_cls_vectors(folder) or backbone.architecture == _OF_FIRST:
            modules = replace(modules, pooling=("cls",))
        elif backbone.architecture in _STATE_POOLING:
            modules = replace(modules, pooling=(stated_pooling(config),))
    if backbone.architecture == NEMOTRON_VL and not modules.prompts:
        said = (Fields(config).text(f"{side}_prefix", f"{side}:") for side in ("query", "passage"))
        modules = replace(modules, prompts=dict(zip(("query", "document"), (f"{each} " for each in said), strict=True)))
    if backbone.architecture == JINA_V4:
        prompts = {**modules.prompts, **_JINA_V4_PROMPTS}
        modules = replace(modules, pooling=("mean",), after=(Normalized(),), prompts=prompts, default_prompt="query")
    if pooling is not None:
        modules = replace(modules, pooling=(pooling,))
    if isinstance(backbone, EncoderConfig) and backbone.filled:
        modules = _cleaned(folder, modules)
    score = score_head(config, backbone) or _yes_no(folder, config, backbone)
    sparse: SparseHead | WholeSparseHead | TokenWeights | None = None
    vectors: TokenVectors | None = None
    if all((folder / name).is_file() for name in _BGE_M3):
        sparse = TokenWeights(_BGE_M3[0])
        vectors = TokenVectors(backbone.hidden_size, bias=True, file=_BGE_M3[1], skip_first=True)
    elif masked:
        sparse = sparse_head(config, backbone, modules.splade or SpladeForm())
    elif modules.splade is not None:
        raise ConfigError("architectures does not end with ForMaskedLM, by whose head SpladePooling weighs tokens")
    elif retriever is not None:
        vectors = retriever[1]
        if vectors is not None and backbone.architecture == COLQWEN3_5_NAME:  # its first files have no bias
            vectors = replace(vectors, bias=any(tensor.name.endswith(_PAGE_BIAS) for tensor in weight_index(folder)))
    elif (found := _colbert(folder, config, modules)) is not None:
        vectors, modules = found
    projection = projection_of(config, backbone)
    return PoolingConfig(
        backbone=backbone,
        modules=modules,
        dimensions=native_dimensions(backbone, modules, projection),
        projection=projection,
        marked=_marked(folder) if backbone.architecture == JINA_LIST else None,
        score=score,
        sparse=sparse,
        vectors=vectors,
        matryoshka=matryoshka_of(config),
    )


def _backbone(
    config: Mapping[str, object], model_impl: ModelImpl, *, masked: bool
) -> EncoderConfig | ModelSpec | TransformersEncoder:
    """``masked``: whether its masked-language head is used."""
    described = partial(transformers_encoder, masked=masked)
    if model_impl == "transformers":
        return asked_of_transformers(described, config)
    if is_encoder(config):
        return encoder_config_from_hf(config)
    try:
        return _decoder(config)
    except UnknownArchitectureError as unknown:
        return run_by_transformers(unknown, described, config, model_impl)


_NO_HEAD: Final[Mapping[str, Any]] = {"tie_embeddings": True, "head_bias": False, "head_transform": None}
"""A decoder without an output head."""


def _decoder(config: Mapping[str, object]) -> ModelSpec:
    """The spec of a decoder, stored with or without its output head.

    Attention is bidirectional if the architecture does, or the config says so, in Gemma's fields or those of Qwen2's
    embedders.
    """
    from ..model_config.hf.embedders import EMBEDDERS  # late: a server starts without it

    named = config.get("architectures")
    as_causal = dict(config)
    read: Callable[[Fields, str], ModelSpec] | None = None
    stem = ""
    if isinstance(named, list) and named:
        stem = str(named[0])
        if stem in _WRITTEN_AS:
            as_causal["architectures"] = [_WRITTEN_AS[stem]]
        for ending in _HEADS:
            bare = stem.removesuffix(ending)
            if bare != stem and (bare in EMBEDDERS or ending != _MASKED):
                as_causal["architectures"] = [bare + (_SEES if bare + _SEES in MEDIA_FAMILIES else _CAUSAL)]
                read = EMBEDDERS.get(bare)
                break
    gemma = bool(as_causal.pop("use_bidirectional_attention", False))
    made = model_spec_from_hf(as_causal) if read is None else checked(read(Fields(as_causal), stem[:80]))
    if gemma:  # the file has the total number of tokens in a window
        for window in {layer.attention.window for layer in made.layers} - {0}:
            windowed = [layer.attention.window == window for layer in made.layers]
            made = with_mixers(made, windowed, window=window // 2 + 1)
    own = str(named[0])[:80] if isinstance(named, list) and named else made.architecture
    bidirectional = made.bidirectional or gemma or config.get("is_causal") is False
    latents = [mixer for layer in made.layers for mixer in layer.mixers if isinstance(mixer, LatentAttentionSpec)]
    if bidirectional and any(each.index is not None or each.shares >= 0 or each.reach for each in latents):
        raise ConfigError("is_causal is false, expected true: the index of latent attention looks back alone")
    by_text = (made.by_text or bool(made.states)) and not bidirectional
    mixers = [mixer for layer in made.layers for mixer in layer.mixers if isinstance(mixer, AttentionSpec)]
    if (bidirectional or by_text) and any(mixer.chunked for mixer in mixers):
        raise ConfigError("is_causal is false, expected true: attention in chunks sees only what is before a token")
    if any(mixer.slopes for mixer in mixers):
        raise UnknownArchitectureError(f"its architecture {own}, with a bias by distance, is not native here")
    if any(mixer.shares >= 0 for mixer in mixers):
        raise ConfigError("num_kv_shared_layers is not 0, and embedders keep no keys that a later layer could see")
    if made.whole_prompts:
        raise ConfigError(f"{own} sees its prompts whole, of which no vectors are made here, expected another model")
    if made.states:
        _check_states(made, own)
    if by_text:
        made = with_mixers(made, causal=True)
    if made.head_transform is not None and own.endswith("Classification"):
        raise ConfigError(f"its architecture {own} has scores of a transformed token, which are not made here")
    return replace(
        made,
        architecture=own,
        **_NO_HEAD,
        bidirectional=bidirectional,
        by_text=by_text,
    )


def _tasks(folder: Path, config: Mapping[str, object]) -> TaskAdapters | None:
    """The adapters of the tasks of a model, in PEFT's form: in a folder for each task, or in one, whose tasks the
    config.json names; None if they were merged. Raises :class:`ConfigError`."""
    places = {file.parent.name: file for file in sorted(folder.glob(f"{_ADAPTERS}/*/{_ADAPTER_CONFIG}"))}
    names, described = (*places,), (*places.values(),)
    files = tuple(f"{_ADAPTERS}/{name}/{_ADAPTER_WEIGHTS}" for name in names)
    if (whole := folder / _ADAPTERS / _ADAPTER_CONFIG).is_file():
        names, described = tuple(Fields(config).texts("task_names") or ()), (whole,)
        files = (f"{_ADAPTERS}/{_ADAPTER_WEIGHTS}",)
    if not described:
        return None
    if _RETRIEVAL not in names or len({*names}) != len(names) or len(names) > _MOST_TASKS:
        raise ConfigError(
            f"{_ADAPTERS} has adapters for {', '.join(names)[:200]}, expected {_RETRIEVAL} among at most {_MOST_TASKS}"
        )
    read = [parse_adapter_config(file.read_bytes()) for file in described]
    first = read[0]
    if any(each.rank != first.rank or each.scale_of("") != first.scale_of("") for each in read):
        raise ConfigError(f"the adapters for {', '.join(names)} differ in r or lora_alpha, expected one of each")
    if any(each.ranks or each.alphas or each.parameters for each in read):
        raise ConfigError("rank_pattern, alpha_pattern or target_parameters of an adapter is set, expected none")
    return TaskAdapters(names, first.rank, first.scale_of(""), files, _RETRIEVAL)


def _check_states(spec: ModelSpec, name: str) -> None:
    """Raise :class:`ConfigError` for a model with recurrent states some of whose layers need a cache."""
    what = "a block that layers share" if any(layer.block for layer in spec.layers) else ""
    what = what or ("n-grams" if spec.input.ngrams or any(layer.ngrams for layer in spec.layers) else "")
    what = what or ("latent attention" if any(group.kind == "latent" for group in spec.cache_groups) else "")
    if what:
        raise ConfigError(
            f"its architecture {name} has {what} beside layers with a recurrent state, of which no vectors or scores "
            "are made here, expected layers of attention to keys and values beside them, or none"
        )


def _yes_no(folder: Path, config: Mapping[str, object], backbone: Backbone) -> ScoreHead | None:
    """The head of a yes-no reranker, described by a sentence-transformers module or recognised by its name; None for
    others."""
    if not isinstance(backbone, ModelSpec) or not backbone.architecture.endswith((_CAUSAL, _SEES)):
        return None
    gemma = config.get("model_type") == "gemma"
    text = config.get("text_config")
    tied = {**(text if isinstance(text, Mapping) else {}), **config}.get("tie_word_embeddings", gemma)
    embedding = "model.embed_tokens" if tied else "lm_head"
    module = next(iter(sorted(folder.glob("*_LogitScore/config.json"))), None)
    if module is not None:
        fields = Fields(read_json(module))
        false = fields.integer("false_token_id", least=0) if fields.has("false_token_id") else None
        return yes_no_head(fields.integer("true_token_id", least=0), false, embedding)
    if not is_named_reranker(folder, config):
        return None
    if gemma:
        token = _token(folder / "tokenizer.json", _BGE_RERANKER, "whose logit is the score")
        return yes_no_head(token, None, embedding)
    return yes_no_head(*_QWEN3_RERANKER, embedding)


def _marked(folder: Path) -> MarkedVectors:
    """The head of jina-reranker-v3. Raises :class:`ConfigError`."""
    shapes = {tensor.name: tensor.shape for tensor in weight_index(folder)}
    inner, outer = (shapes.get(f"projector.{layer}.weight", ()) for layer in (0, 2))
    if len(inner) != 2 or len(outer) != 2:
        raise ConfigError("projector.0.weight or projector.2.weight is missing, which make the vectors it ranks by")
    file = folder / "tokenizer.json"
    document, query = (_token(file, mark, "which marks what is ranked") for mark in _JINA_MARKS)
    return MarkedVectors(document, query, inner[0], outer[0])


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int]


class _Added(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    model: _Vocabulary
    added_tokens: list[_Added] = []


def _token(file: Path, text: str, use: str) -> int:
    """The id of a token in a tokenizer's file; ``use`` of it, for the message. Raises :class:`ConfigError`."""
    try:
        read = msgspec.json.decode(file.read_bytes(), type=_Tokenizer)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file.name}, by which the model says {text!r}, cannot be read: {error}") from error
    known = read.model.vocab | {token.content: token.id for token in read.added_tokens}
    if text not in known:
        raise ConfigError(f"{file.name} has no token {text!r}, {use}")
    return known[text]


def _cleaned(folder: Path, modules: SentenceModules) -> SentenceModules:
    """The modules with the text cleaning of SigLIP's tokenizers, which their files do not describe."""
    file = folder / "tokenizer_config.json"
    named = Fields(read_json(file)).text("tokenizer_class", "") if file.is_file() else ""
    bare = named.removesuffix("Fast") == "SiglipTokenizer"
    return replace(modules, lower_case=bare or named.startswith("Siglip2Tokenizer"), bare=bare)


def _named_masked(config: Mapping[str, object]) -> bool:
    named = config.get("architectures")
    return isinstance(named, list) and bool(named) and str(named[0]).endswith(_MASKED)


def _is_splade(folder: Path) -> bool:
    """Whether sentence-transformers' files, or else the folder's name, say that it is a SPLADE model."""
    for name in ("modules.json", "router_config.json"):
        listed = folder / name
        if listed.is_file() and "Splade" in listed.read_text(encoding="utf-8", errors="replace"):
            return True
    return not (folder / "modules.json").is_file() and "splade" in str(folder).lower()


def _has_cls_vectors(folder: Path) -> bool:
    """Whether it is BGE-M3, which does not describe its pooling."""
    return all((folder / name).is_file() for name in _BGE_M3)


def _colbert(
    folder: Path, config: Mapping[str, object], modules: SentenceModules
) -> tuple[TokenVectors, SentenceModules] | None:
    """A layer on every token: ``linear`` of Stanford's files, or the first dense module of PyLate's."""
    names = config.get("architectures")
    stanford = (folder / "artifact.metadata").is_file()
    if stanford or (isinstance(names, list) and any("ColBERT" in str(name) for name in names)):
        shapes = {tensor.name: tensor.shape for tensor in weight_index(folder)}
        shape = shapes.get("linear.weight")
        if shape is None or len(shape) != 2:
            raise ConfigError("linear.weight is missing, which makes the vectors of a ColBERT")
        return TokenVectors(shape[0], bias="linear.bias" in shapes), modules
    listed = folder / "modules.json"
    text = listed.read_text(encoding="utf-8", errors="replace") if listed.is_file() else ""
    if "pylate" not in text and "MultiVector" not in text:
        return None
    denses = [module for module in modules.after if isinstance(module, Dense)]
    if not denses:
        return None
    dense = denses[0]
    if len(denses) > 1 or dense.activation != "identity":
        raise ConfigError(
            f"a ColBERT with {len(denses)} dense modules, of which {dense.folder.name} is "
            f"{dense.activation}, is not known: expected one that is identity"
        )
    left = replace(modules, after=(Normalized(),))
    return TokenVectors(dense.outputs, bias=dense.bias, file=str(dense.folder.relative_to(folder))), left
