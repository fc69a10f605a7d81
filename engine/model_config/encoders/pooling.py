"""Describes pooling models, read from a model's folder. Torch-free.

A pooling model is a backbone (an encoder, or a decoder without generation), sentence-transformers' modules, and
optionally a scoring head.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from stentor.protocols.ipc.pooling import Pooling, PoolingTask

from ..config_fields import ConfigError, Fields
from ..hf import qwen3_asr
from ..spec.encoder import EncoderConfig
from ..spec.model import Backbone, ModelSpec, dense_mlp
from .sentence import Dense, DenseActivation, LayerNormed, PoolingMode, SentenceModules, SpladeForm
from .transformers_config import TransformersEncoder

ScoreActivation = Literal["softmax", "sigmoid", "identity"]
_MOST_LABELS: Final = 100_000
_EACH_TOKEN: Final = "ForTokenClassification"
_CLASSIFIERS: Final = ("GPT2", "GPTBigCode", "GPTNeo", "GPTNeoX", "BioGpt", "Falcon", "EuroBert")
"""Decoders whose token classification heads are named like encoders'."""
JINA_VL: Final = "JinaVLForRanking"
"""jina-reranker-m0: Qwen2-VL that scores a query and a document, either of which may be a picture."""
_JINA_VL_SHIFT: Final = -2.65
"""Only in its authors' code."""
JINA_LIST: Final = "JinaForRanking"
"""jina-reranker-v3: Qwen3 that reads a query and all documents in one prompt."""
VOYAGE: Final = "VoyageQwen3BidirectionalEmbedModel"
NEMOTRON_RERANKER: Final = "LlamaBidirectionalForSequenceClassification"
NEMOTRON_VL: Final = "LlamaNemotronVLModel"
NEMOTRON_VL_RERANKER: Final = "LlamaNemotronVLForSequenceClassification"
_STATED: Final[Mapping[str, PoolingMode]] = {"avg": "mean", "cls": "cls", "last": "lasttoken"}
"""Poolings by NVIDIA's names."""
_SHORTENED: Final = ("matryoshka_dimensions", "matryoshka_dims", "head_dims")
"""The lengths in vLLM's field, in that of jina-embeddings-v4 and of ColQwen3.5."""
_EUROBERT: Final[Mapping[str, PoolingMode]] = {"late": "mean", "mean": "mean", "bos": "cls"}
"""Poolings of EuroBERT's classifiers; ``late`` pools the scores of tokens."""


class ScoreHead(msgspec.Struct, frozen=True):
    """out(norm(act(dense(pooled)))); only ``out`` is always present."""

    pooling: PoolingMode | None
    """None: each token is scored."""
    out: str
    """Name of the last layer's tensors in the checkpoint."""
    labels: tuple[str, ...]
    activate: ScoreActivation
    out_bias: bool = True
    dense: str = ""
    dense_bias: bool = True
    activation: DenseActivation = "tanh"
    norm: str = ""
    norm_bias: bool = True
    norm_eps: float = 1e-5
    tied_rows: tuple[int, ...] = ()
    """Rows of the output embedding ``out`` that replace a layer: (true, false) scores by the difference of the two
    tokens' logits, (true,) by its logit."""
    scale: float = 1.0
    """Factor on the output of ``out``."""
    shift: float = 0.0
    """Added to it."""
    late: bool = False
    """Whether tokens are scored one by one, and their scores pooled (EuroBERT)."""
    scored_token: int | None = None
    """The token of a text that is scored, which every text must have, or where tokens are scored, those with scores;
    None: any text has a score, or each token."""
    class_ms: float = 0.0
    """Milliseconds between the times that the classes are (Qwen3-ForcedAligner); 0: they are none."""


class TokenProjection(msgspec.Struct, frozen=True):
    """A linear layer without bias over the hidden states of all tokens, before any pooling (Voyage,
    EmbeddingGemma 2)."""

    name: str
    """Of its tensors in the checkpoint."""
    outputs: int


class SparseHead(msgspec.Struct, frozen=True):
    """SPLADE (arXiv:2109.10086): the maximum over a text's tokens of log(1 + relu(logits))."""

    dense: str
    norm: str
    bias: str
    """Name of the logits' bias; their weight is the word embedding."""
    activation: DenseActivation
    norm_eps: float
    dense_bias: bool = True
    norm_bias: bool = True
    size: int = 0
    """Size of word embeddings; 0: of hidden states."""
    form: SpladeForm = msgspec.field(default_factory=SpladeForm)


class WholeSparseHead(msgspec.Struct, frozen=True):
    """SPLADE by the masked-language head of transformers' modules."""

    form: SpladeForm


class TokenWeights(msgspec.Struct, frozen=True):
    """BGE-M3 (arXiv:2402.03216): relu of one number a token; its tensors are in ``file``."""

    file: str


class TokenVectors(msgspec.Struct, frozen=True):
    """ColBERT (arXiv:2004.12832): a linear layer on every token, normalised."""

    outputs: int
    bias: bool
    file: str = ""
    """File or folder of its tensors, within the model's; "": in the checkpoint, as ``linear``."""
    skip_first: bool = False
    """Whether the first token has no vector (BGE-M3)."""
    stored: int = 0
    """Outputs of the stored layer, of which the first are used (Ops-ColQwen3); 0: all are."""
    layer: bool = True
    """Whether there is a layer; otherwise hidden states are only normalised (NVIDIA's ColEmbed)."""


class MarkedVectors(msgspec.Struct, frozen=True):
    """Vectors of a prompt's marked tokens, the documents' before the query's (arXiv:2509.25085): two layers without
    biases, ``projector.0`` and ``projector.2``, with a ReLU between."""

    document: int
    """Token behind each document."""
    query: int
    inner: int
    outputs: int


class PoolingConfig(msgspec.Struct, frozen=True):
    backbone: EncoderConfig | ModelSpec | TransformersEncoder
    modules: SentenceModules
    dimensions: int
    """Length of a text's vector."""
    score: ScoreHead | None = None
    sparse: SparseHead | WholeSparseHead | TokenWeights | None = None
    vectors: TokenVectors | None = None
    """None: the hidden states."""
    projection: TokenProjection | None = None
    marked: MarkedVectors | None = None
    """None: tokens are not marked."""
    matryoshka: bool | tuple[int, ...] = False
    """Whether vectors may be shortened, and the lengths if the model lists them."""

    @property
    def architecture(self) -> str:
        return self.backbone.architecture

    @property
    def vocab_size(self) -> int:
        return self.backbone.vocab_size

    @property
    def adapters(self) -> tuple[str, ...]:
        """Possible values of :attr:`Pooling.adapter`; empty for most models."""
        return self.backbone.adapters.names if self.backbone.adapters else ()

    @property
    def token_size(self) -> int:
        """Size of a token's hidden state as it is pooled."""
        return self.backbone.output_size if self.projection is None else self.projection.outputs

    @property
    def beside(self) -> tuple[str, ...]:
        """Files or folders with further tensors, within the model's or as absolute paths."""
        found = [str(module.folder) for module in self.modules.after if isinstance(module, Dense | LayerNormed)]
        found += [head.file for head in (self.sparse, self.vectors) if isinstance(head, TokenWeights | TokenVectors)]
        found.append(self.modules.queries)
        found += () if self.backbone.adapters is None else self.backbone.adapters.files
        return tuple(name for name in found if name)

    @property
    def causal(self) -> bool:
        """Whether attention is causal."""
        return isinstance(self.backbone, ModelSpec) and not self.backbone.bidirectional

    @property
    def cached(self) -> bool:
        """Whether keys and values are cached, so that prompts may come in chunks and share prefixes."""
        return self.causal and isinstance(self.backbone, ModelSpec) and not self.backbone.by_text

    @property
    def max_length(self) -> int:
        """Most tokens of one text."""
        own = self.backbone.max_position
        return own if self.modules.max_length is None else min(own, self.modules.max_length)


def score_head(
    config: Mapping[str, object], backbone: EncoderConfig | ModelSpec | TransformersEncoder
) -> ScoreHead | None:
    """The head of ``architectures``; None if there is none. Raises :class:`ConfigError`."""
    if isinstance(backbone, TransformersEncoder):
        return _transformers_head(config, backbone)
    if backbone.architecture.endswith("ForSequenceClassification"):
        return _sequence_head(config, backbone)
    if backbone.architecture.endswith(_EACH_TOKEN):
        return _token_head(config, backbone)
    if backbone.architecture == JINA_VL:
        return replace(_reward_head("lasttoken", ("LABEL_0",), "sigmoid"), shift=_JINA_VL_SHIFT)
    if backbone.architecture == "InternLM2ForRewardModel":
        return ScoreHead("lasttoken", "v_head", ("LABEL_0",), "identity", out_bias=False)
    if isinstance(backbone, ModelSpec) and backbone.architecture.endswith("ForRewardModel"):
        return _reward_head("lasttoken", ("LABEL_0",), "identity")
    if isinstance(backbone, ModelSpec) and backbone.architecture.endswith("ForProcessRewardModel"):
        return _reward_head(None, _labels(config), "softmax")
    return None


def _reward_head(pooling: PoolingMode | None, labels: tuple[str, ...], activate: ScoreActivation) -> ScoreHead:
    """The head of Qwen's reward models, for a text or each of its tokens."""
    return ScoreHead(pooling, "score.2", labels, activate, dense="score.0", activation="relu")


def _sequence_head(config: Mapping[str, object], backbone: EncoderConfig | ModelSpec) -> ScoreHead:
    if backbone.architecture == NEMOTRON_VL_RERANKER:  # the text part may say what the whole leaves out
        inside = Fields(config).table("llm_config") or {}
        kept = ("temperature", *(() if {"id2label", "num_labels"} & config.keys() else ("id2label", "num_labels")))
        config = {**{name: inside[name] for name in kept if name in inside}, **config}
    labels, activate = _labels(config), _activation(config)
    if backbone.architecture in (NEMOTRON_RERANKER, NEMOTRON_VL_RERANKER):
        scale = 1 / Fields(config).positive("temperature", 1.0)
        return ScoreHead(stated_pooling(config), "score", labels, activate, out_bias=False, scale=scale)
    if backbone.architecture.startswith("EuroBert"):
        return _eurobert_head(config, labels, activate)
    if isinstance(backbone, ModelSpec):
        return ScoreHead("lasttoken", "score", labels, activate, out_bias=False)
    match backbone.family:
        case "bert" | "nomic_bert" | "gte":
            return ScoreHead("cls", "classifier", labels, activate, dense="pooler.dense")
        case "electra":
            out, dense = "classifier.out_proj", "classifier.dense"
            return ScoreHead("cls", out, labels, activate, dense=dense, activation="gelu")
        case "roberta" | "mpnet" | "jina":
            return ScoreHead("cls", "classifier.out_proj", labels, activate, dense="classifier.dense")
        case "distilbert":
            return ScoreHead("cls", "classifier", labels, activate, dense="pre_classifier", activation="relu")
        case "modernbert":
            return _modernbert_head(config, backbone, labels, activate, each=False)
        case "clip":
            raise ConfigError("a head that classifies is not known behind two towers")


def _transformers_head(config: Mapping[str, object], backbone: TransformersEncoder) -> ScoreHead | None:
    """A head that transformers runs; only the use of its logits is described."""
    if backbone.module.endswith("ForSequenceClassification"):
        head = ScoreHead("cls", "", _labels(config), _activation(config))
        return replace(head, scored_token=backbone.scored_token)
    if backbone.module.endswith(_EACH_TOKEN):
        return ScoreHead(None, "", _labels(config), "softmax")
    return None


def _token_head(config: Mapping[str, object], backbone: EncoderConfig | ModelSpec) -> ScoreHead:
    labels = _labels(config)
    if backbone.architecture == qwen3_asr.ALIGNER:
        fields = Fields(config)
        out = "lm_head" if fields.has(qwen3_asr.PUBLISHED_HEAD) else "score"
        bias, mark = fields.flag("token_classification_bias"), fields.integer("timestamp_token_id", 151_705)
        step = fields.positive("timestamp_segment_time", 80.0)
        return ScoreHead(None, out, labels, "softmax", out_bias=bias, scored_token=mark, class_ms=step)
    if isinstance(backbone, ModelSpec):
        name = "classifier" if backbone.architecture.removesuffix(_EACH_TOKEN) in _CLASSIFIERS else "score"
        return ScoreHead(None, name, labels, "softmax")
    if backbone.family == "modernbert":
        return _modernbert_head(config, backbone, labels, "softmax", each=True)
    return ScoreHead(None, "classifier", labels, "softmax")


def _modernbert_head(
    config: Mapping[str, object],
    backbone: EncoderConfig,
    labels: tuple[str, ...],
    activate: ScoreActivation,
    *,
    each: bool,
) -> ScoreHead:
    fields = Fields(config)
    how = fields.text("classifier_pooling", "cls")
    if how not in ("cls", "mean"):
        raise ConfigError(f"classifier_pooling is {how[:40]!r}, expected 'cls' or 'mean'")
    pooling: PoolingMode | None = None if each else "mean" if how == "mean" else "cls"
    return ScoreHead(
        pooling,
        "classifier",
        labels,
        activate,
        dense="head.dense",
        dense_bias=fields.flag("classifier_bias"),
        activation=dense_activation(fields.text("classifier_activation", "gelu")),
        norm="head.norm",
        norm_bias=backbone.norm_bias,
        norm_eps=backbone.norm_eps,
    )


def _eurobert_head(config: Mapping[str, object], labels: tuple[str, ...], activate: ScoreActivation) -> ScoreHead:
    fields = Fields(config)
    how = fields.text("classifier_pooling", fields.text("clf_pooling", "late"))  # the latter in its authors' files
    if how not in _EUROBERT:
        raise ConfigError(f"classifier_pooling is {how[:40]!r}, expected one of {', '.join(_EUROBERT)}")
    return ScoreHead(
        _EUROBERT[how], "classifier", labels, activate, dense="dense", activation="gelu", late=how == "late"
    )


def stated_pooling(config: Mapping[str, object]) -> PoolingMode:
    """The pooling that NVIDIA's config.json states, of a model of pictures also for its text part, or else the mean.
    Raises :class:`ConfigError`."""
    fields = Fields(config)
    inside = fields.table("llm_config")
    return fields.one_of("pooling", _STATED, None if inside is None else Fields(inside).text("pooling", "avg"))


def projection_of(config: Mapping[str, object], backbone: Backbone) -> TokenProjection | None:
    """The layer over the hidden states of all tokens; None for most models. Raises :class:`ConfigError`."""
    if backbone.architecture == VOYAGE:
        return TokenProjection("linear", Fields(config).integer("num_labels"))
    if backbone.architecture.startswith("EmbeddingGemma2"):
        inside = Fields(config).table("text_config")
        size = Fields(config if inside is None else inside).integer("embedding_dim", 768)
        return TokenProjection("embedding_projection", size)
    return None


def dense_activation(name: str) -> DenseActivation:
    """The activation by transformers' name. Raises :class:`ConfigError`."""
    known: Mapping[str, DenseActivation] = {
        "gelu": "gelu",
        "relu": "relu",
        "tanh": "tanh",
        "silu": "silu",
        "swish": "silu",
        "sigmoid": "sigmoid",
        "linear": "identity",
    }
    if name not in known:
        raise ConfigError(f"an activation {name[:40]!r} is not known here, expected one of {', '.join(known)}")
    return known[name]


def _labels(config: Mapping[str, object]) -> tuple[str, ...]:
    """The class names, in order."""
    given = config.get("id2label")
    if isinstance(given, Mapping) and given:
        names = {str(key): str(value) for key, value in given.items()}
        count = len(names)
        if count > _MOST_LABELS or any(str(number) not in names for number in range(count)):
            raise ConfigError(f"id2label names {count} classes, expected numbers from 0 without gaps")
        return tuple(names[str(number)] for number in range(count))
    count = Fields(config).integer("num_labels", 2, most=_MOST_LABELS)
    return tuple(f"LABEL_{number}" for number in range(count))


def _activation(config: Mapping[str, object]) -> ScoreActivation:
    """The activation by sentence-transformers' fields, else by the training objective."""
    own = config.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, Mapping) else None
    named = named or config.get("sbert_ce_default_activation_function")
    if isinstance(named, str):
        last = named.rpartition(".")[2]
        known: Mapping[str, ScoreActivation] = {"Sigmoid": "sigmoid", "Identity": "identity", "Softmax": "softmax"}
        if last not in known:
            raise ConfigError(f"activation_fn is {named[:60]!r}, expected one of {', '.join(known)}")
        return known[last]
    if config.get("problem_type") == "regression":
        return "identity"
    if config.get("problem_type") == "multi_label_classification" or len(_labels(config)) == 1:
        return "sigmoid"
    return "softmax"


def yes_no_head(true_token: int, false_token: int | None, embedding: str) -> ScoreHead:
    """A language model that answers yes or no: its score is the probability of yes among the two."""
    tied_rows = (true_token,) if false_token is None else (true_token, false_token)
    return ScoreHead("lasttoken", embedding, ("LABEL_0",), "sigmoid", out_bias=False, tied_rows=tied_rows)


def sparse_head(
    config: Mapping[str, object], backbone: EncoderConfig | ModelSpec | TransformersEncoder, form: SpladeForm
) -> SparseHead | WholeSparseHead:
    """The masked-language head of a SPLADE model. Raises :class:`ConfigError` if it is not known."""
    if isinstance(backbone, TransformersEncoder):
        return WholeSparseHead(form)
    if isinstance(backbone, ModelSpec):
        raise ConfigError(f"weights of the vocabulary by {backbone.architecture} are not known, expected an encoder")
    return replace(_sparse_head(config, backbone), form=form)


def _sparse_head(config: Mapping[str, object], backbone: EncoderConfig) -> SparseHead:
    activation: DenseActivation = "relu" if dense_mlp(backbone).activation == "relu" else "gelu"
    eps = backbone.norm_eps
    match backbone.family:
        case "bert" | "nomic_bert":
            front = "cls.predictions"
            activation = dense_activation(Fields(config).text("hidden_act", "gelu"))
            norm = "LayerNorm" if backbone.family == "bert" else "layer_norm"
            return SparseHead(f"{front}.transform.dense", f"{front}.transform.{norm}", f"{front}.bias", activation, eps)
        case "electra":
            front, bias = "generator_predictions", "generator_lm_head.bias"
            size = backbone.embedding_size
            return SparseHead(f"{front}.dense", f"{front}.LayerNorm", bias, "gelu", eps, size=size)
        case "roberta" | "jina":
            return SparseHead("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "gelu", eps)
        case "gte":
            return SparseHead("lm_head.dense", "lm_head.norm", "lm_head.decoder.bias", "gelu", eps)
        case "distilbert":
            return SparseHead("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", activation, 1e-12)
        case "mpnet":
            return SparseHead("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "gelu", eps)
        case "modernbert":
            fields = Fields(config)
            if not fields.flag("decoder_bias", True):
                raise ConfigError("decoder_bias is false, expected true")
            activation = dense_activation(fields.text("classifier_activation", "gelu"))
            return SparseHead(
                "head.dense",
                "head.norm",
                "decoder.bias",
                activation,
                eps,
                dense_bias=fields.flag("classifier_bias"),
                norm_bias=backbone.norm_bias,
            )
        case other:
            raise ConfigError(f"a masked-language head of {other} is not known")


QUERY: Final = "query"
"""The value of :attr:`Pooling.adapter` for queries made of :attr:`.sentence.SentenceModules.queries`."""


def native_dimensions(backbone: Backbone, modules: SentenceModules, projection: TokenProjection | None = None) -> int:
    """Size of a text's vector behind the modules."""
    size = (backbone.output_size if projection is None else projection.outputs) * len(modules.pooling)
    for module in modules.after:
        inputs = getattr(module, "inputs", getattr(module, "size", size))
        if inputs != size:
            raise ConfigError(f"a module behind the pooling takes {inputs} numbers, and gets {size}")
        size = getattr(module, "outputs", size)
    return size


def matryoshka_of(config: Mapping[str, object]) -> bool | tuple[int, ...]:
    """The shortening of vectors in a config.json."""
    given = next((each for name in _SHORTENED if (each := config.get(name)) is not None), None)
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        sizes = [each for each in given if isinstance(each, int) and not isinstance(each, bool) and each > 0]
        if len(sizes) != len(given):
            raise ConfigError(f"matryoshka_dimensions is {str(given)[:60]}, expected whole numbers above 0")
        return tuple(sorted(sizes))
    return config.get("is_matryoshka") is True


def tasks_of(config: PoolingConfig) -> tuple[PoolingTask, ...]:
    """The supported tasks, the primary one first."""
    if config.marked is not None:
        return ("token_embed",)
    tasks: list[PoolingTask] = []
    if config.score is not None:
        tasks.append("token_classify" if config.score.pooling is None else "classify")
    if config.sparse is not None and config.vectors is None and config.score is None:
        tasks.append("sparse")
    tasks += ["embed", "token_embed"]
    if config.sparse is not None and "sparse" not in tasks:
        tasks.append("sparse")
    return tuple(tasks)


def looks_at_all(config: PoolingConfig, request: Pooling) -> bool:
    """Whether a request needs the hidden states of all tokens, not only the last."""
    match request.task:
        case "embed":
            return config.modules.pooling != ("lasttoken",)
        case "classify":
            return config.score is None or config.score.pooling != "lasttoken"
        case _:
            return True
