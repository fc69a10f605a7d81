"""Reads sentence-transformers' files: how an embedder's hidden states become vectors. Torch-free.

::

    modules.json                         the modules in order, each with its folder
    sentence_bert_config.json            max_seq_length, do_lower_case
    config_sentence_transformers.json    prompts and which is the default
    1_Pooling/config.json                pooling
    2_Dense/config.json, model.safetensors
    router_config.json                   which modules make queries, and which documents

For a folder without them, see :func:`read_sentence_modules`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, get_args

from ..model_config.config_fields import ConfigError, Fields
from ..model_config.encoders.sentence import (
    Dense,
    DenseActivation,
    LayerNormed,
    Module,
    Normalized,
    PoolingMode,
    SentenceModules,
    SpladeForm,
)
from .errors import CheckpointError
from .safetensors_index import read_json, read_json_list

_OLD_MODES: Final[Mapping[str, PoolingMode]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: Final[Mapping[str, DenseActivation]] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}
_SILENT: Final = ("Transformer", "MLMTransformer", "Dropout", "LogitScore", "MultiVectorMask")
"""Modules that are the model itself, have no effect after training, or are read elsewhere."""
_ROUTERS: Final = ("Router", "Asym")
_STATIC: Final = "SparseStaticEmbedding"
_SPLADE: Final = ("pooling_strategy", "activation_function")
_MOST_MODULES: Final = 16


def read_sentence_modules(folder: Path, *, causal: bool) -> SentenceModules:
    """The modules of the files; without files the last token for a ``causal`` model and the mean for others,
    normalised.

    Raises :class:`CheckpointError`, with one line, for unsupported modules.
    """
    listed = folder / "modules.json"
    try:
        if not listed.is_file():
            return SentenceModules(("lasttoken" if causal else "mean",), after=(Normalized(),))
        return _read(folder, listed, causal=causal)
    except ConfigError as error:
        raise CheckpointError(f"Cannot load {folder}: {error}.") from error


def _read(folder: Path, listed: Path, *, causal: bool) -> SentenceModules:
    entries = read_json_list(listed)
    if len(entries) > _MOST_MODULES:
        raise ConfigError(f"modules.json lists {len(entries)} modules, expected at most {_MOST_MODULES}")
    pooling: tuple[PoolingMode, ...] = ()
    include_prompt = True
    after: list[Module] = []
    splade: SpladeForm | None = None
    queries = ""
    named: list[tuple[str, str]] = []
    for entry in entries:
        fields = Fields(entry)
        kind, path = fields.text("type").rpartition(".")[2], fields.text("path", "")
        if kind in _ROUTERS:
            documents, queries = _routed(folder, path)
            named += documents
        else:
            named.append((kind, path))
    for kind, path in named:
        place = _inside(folder, path)
        match kind:
            case "Pooling":
                pooling, include_prompt = _pooling(place)
            case "Dense":
                after.append(_dense(place))
            case "LayerNorm":
                after.append(LayerNormed(place, Fields(read_json(place / "config.json")).integer("dimension")))
            case "Normalize":
                after.append(Normalized())
            case "SpladePooling":
                splade = _splade(place)
            case _ if kind in _SILENT:
                continue
            case _:
                raise ConfigError(f"modules.json names a module {kind[:60]!r}, which is not known")
    if queries and splade is None:
        raise ConfigError("router_config.json makes queries of stored weights, and documents without SpladePooling")
    if not pooling:
        pooling = ("lasttoken" if causal else "mean",)
    length, lower_case = _limits(folder)
    prompts, default = _prompts(folder)
    return SentenceModules(
        pooling, include_prompt, tuple(after), length, lower_case, prompts, default, splade=splade, queries=queries
    )


def _routed(folder: Path, path: str) -> tuple[list[tuple[str, str]], str]:
    """The modules that make documents, each with its path, and the folder of the weights that make queries.

    Raises :class:`ConfigError` for routes that no sparse model without inference of queries has.
    """
    config = Fields(read_json(_inside(folder, path) / "router_config.json"))
    types, structure = (config.table(name) or {} for name in ("types", "structure"))
    kinds = {name: str(kind).rpartition(".")[2] for name, kind in types.items()}
    routes = {name: Fields(structure).texts(name) or () for name in structure}
    queries = [kinds.get(name) for name in routes.get("query", ())]
    documents = [
        (kinds.get(name, ""), f"{path}/{name}" if path and name else path or name)
        for name in routes.get("document", ())
    ]
    if set(routes) != {"query", "document"} or queries != [_STATIC] or not documents:
        raise ConfigError(
            f"router_config.json has the routes {', '.join(sorted(routes)) or 'none'}, expected query, which is one "
            f"{_STATIC}, and document"
        )
    default = Fields(config.table("parameters") or {}).text("default_route", "document")
    if default != "document":
        raise ConfigError(f"default_route is {default[:40]!r}, expected 'document'")
    first = documents[0][1]
    if first:
        raise ConfigError(
            f"router_config.json has the document's model in {first[:60]!r}, expected in the folder itself"
        )
    static = f"{path}/{routes['query'][0]}" if path else routes["query"][0]
    if Fields(read_json(_inside(folder, static) / "config.json")).has("path"):
        raise ConfigError(f"{_STATIC} has a path to a file of weights, expected model.safetensors in its folder")
    return documents, static


def _inside(folder: Path, path: str) -> Path:
    """``path`` below ``folder``; raises ConfigError for one outside."""
    place = (folder / path).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise ConfigError(f"modules.json names the path {path[:60]!r}, expected one within the model's folder")
    return folder / path


def _pooling(place: Path) -> tuple[tuple[PoolingMode, ...], bool]:
    config = read_json(place / "config.json")
    fields = Fields(config)
    named = config.get("pooling_mode")
    if named is None:
        modes = tuple(mode for name, mode in _OLD_MODES.items() if fields.flag(name))
        return modes or ("mean",), fields.flag("include_prompt", True)
    given = named if isinstance(named, list) else [named]
    known = get_args(PoolingMode)
    modes = tuple(mode for each in given for mode in known if mode == each)
    if len(modes) != len(given) or not modes:
        raise ConfigError(f"pooling_mode is {str(named)[:60]!r}, expected one of {', '.join(known)}")
    return modes, fields.flag("include_prompt", True)


def _splade(place: Path) -> SpladeForm:
    fields = Fields(read_json(place / "config.json"))
    given = fields.text("pooling_strategy", "max"), fields.text("activation_function", "relu")
    for name, value, known in zip(_SPLADE, given, (("max", "sum"), ("relu", "log1p_relu")), strict=True):
        if value not in known:
            raise ConfigError(f"{name} of SpladePooling is {value[:40]!r}, expected one of {', '.join(known)}")
    return SpladeForm(given[0] == "sum", given[1] == "log1p_relu")


def _dense(place: Path) -> Dense:
    fields = Fields(read_json(place / "config.json"))
    if fields.flag("use_residual"):
        raise ConfigError(f"{place.name} is a dense module with a residual, which is not known")
    named = fields.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if named not in _ACTIVATIONS:
        raise ConfigError(f"activation_function is {named[:60]!r}, expected one of {', '.join(_ACTIVATIONS)}")
    return Dense(
        place,
        fields.integer("in_features"),
        fields.integer("out_features"),
        fields.flag("bias", True),
        _ACTIVATIONS[named],
    )


def _limits(folder: Path) -> tuple[int | None, bool]:
    file = folder / "sentence_bert_config.json"
    if not file.is_file():
        return None, False
    fields = Fields(read_json(file))
    length = fields.integer("max_seq_length") if fields.has("max_seq_length") else None
    return length, fields.flag("do_lower_case")


def _prompts(folder: Path) -> tuple[Mapping[str, str], str | None]:
    file = folder / "config_sentence_transformers.json"
    if not file.is_file():
        return {}, None
    config = read_json(file)
    given = config.get("prompts") or {}
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise ConfigError("prompts must be texts by name")
    default = config.get("default_prompt_name")
    if default is not None and default not in given:
        raise ConfigError(f"default_prompt_name is {str(default)[:60]!r}, which is none of the prompts")
    return {str(name): str(text) for name, text in given.items()}, None if default is None else str(default)
