"""The fields of every request, for ``docs/reference/fields.md``: type, default, and whether they have an effect."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, UNSET, inspect

from stentor.protocols.anthropic import request as anthropic
from stentor.protocols.cohere import chat as cohere_chat
from stentor.protocols.llama_cpp import request as llama_cpp
from stentor.protocols.ollama import request as ollama
from stentor.protocols.openai import (
    chat,
    chat_batch,
    completions,
    decisions,
    generate,
    sampling,
    systemone,
)
from stentor.protocols.openai.batches import BatchCreate
from stentor.protocols.openai.responses import request as responses
from stentor.protocols.openai.speech import SpeechRequest
from stentor.protocols.openai.transcription import TranscriptionForm, TranslationForm
from stentor.protocols.openai.uploads import UploadCreate
from stentor.protocols.pooling import embeddings, pooling, scoring
from stentor.protocols.sglang import encode as sglang_encode
from stentor.protocols.sglang import request as sglang_request

from ..api.common.described import Operations
from ..api.ops.sglang import UpdateFromDiskRequest
from ..app.application import OPERATIONS

_LARGE: Final = 2**31 - 1
"""A bound from here on only says how wide the number is."""


class Facts(msgspec.Struct, frozen=True):
    """What a request's type does not say of its fields."""

    refused: Sequence[str] = ()
    """Fields that get a 400 with the code ``unsupported``, whatever their value."""
    ignored: Sequence[str] = ()
    """Fields that are accepted and have no effect; those with a dot are inside of another field."""
    partly: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Values that a field may have, where others are refused."""


class Request(msgspec.Struct, frozen=True):
    """One kind of request."""

    endpoints: Sequence[str]
    type: type[msgspec.Struct]
    facts: Facts
    file_field: str = ""
    """The form's field of a file; "" for JSON."""


_SAMPLING_IGNORED: Final = (*sampling.IGNORED_FIELDS, "stream_options.include_obfuscation")
_OLLAMA_PARTLY: Final = {"format": 'only `""`, `"json"` or a schema'}
_VECTORS_PARTLY: Final = {"padding": "only `do_not_pad`, or `max_length` of SigLIP"}
_BEAMS_PARTLY: Final = {
    "best_of": "only as much as `n`, without `use_beam_search`",
    "length_penalty": "has an effect with `use_beam_search`",
}
_OFFSETS_PARTLY: Final = {"return_token_offsets": "has an effect on `…/render`"}
_TRANSCRIPTION_PARTLY: Final = {
    "n": "only 1, without `use_beam_search`",
    "length_penalty": _BEAMS_PARTLY["length_penalty"],
    "to_language": "other than English: of translations by models that write several languages",
    "response_format": "`diarized_json`: of models that tell speakers apart",
}

_FACTS: Final[Mapping[Any, Facts]] = {
    chat.ChatRequest: Facts(
        (*sampling.REFUSED_EVERYWHERE, *chat.REFUSED),
        (*_SAMPLING_IGNORED, *chat.IGNORED_FIELDS),
        {"modalities": 'only `["text"]`', **_OFFSETS_PARTLY, **_BEAMS_PARTLY, **sampling.METHODS_PARTLY},
    ),
    chat_batch.ChatBatchRequest: Facts(
        (*sampling.REFUSED_EVERYWHERE, *chat.REFUSED, *chat_batch.ALONE),
        (*_SAMPLING_IGNORED, *chat.IGNORED_FIELDS),
        {"modalities": 'only `["text"]`', "n": "only 1", "best_of": "only 1", **sampling.METHODS_PARTLY},
    ),
    completions.CompletionRequest: Facts(
        (*sampling.REFUSED_EVERYWHERE, *completions.REFUSED),
        (*_SAMPLING_IGNORED, "store", "metadata"),
        {**_OFFSETS_PARTLY, **_BEAMS_PARTLY, **sampling.METHODS_PARTLY},
    ),
    generate.TokensRequest: Facts(generate.REFUSED),
    responses.ResponseRequest: Facts(
        (*responses.REFUSED, *responses.MOVED), responses.IGNORED_FIELDS, {"include_reasoning": "only true"}
    ),
    systemone.SystemOneRequest: Facts(systemone.REFUSED),
    decisions.DecisionRequest: Facts(ignored=decisions.IGNORED_FIELDS),
    responses.ContextFields: Facts(ignored=("personality",)),
    responses.CompactRequest: Facts(
        ignored=("image", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "service_tier")
    ),
    anthropic.MessagesRequest: Facts((*anthropic.REFUSED, "thread"), anthropic.IGNORED_FIELDS),
    anthropic.CountTokensRequest: Facts((*anthropic.REFUSED, "thread"), anthropic.IGNORED_FIELDS),
    embeddings.EmbeddingRequest: Facts(
        (*embeddings.REFUSED, "images"), ("user",), {**_VECTORS_PARTLY, "embedding_type": "only `float` or `base64`"}
    ),
    cohere_chat.CohereChatRequest: Facts(cohere_chat.REFUSED, partly=cohere_chat.PARTLY),
    pooling.PoolingRequest: Facts(ignored=("user",), partly=_VECTORS_PARTLY),
    pooling.ClassifyRequest: Facts(ignored=("user",), partly=_VECTORS_PARTLY),
    scoring.ScoreRequest: Facts((), ("user",), _VECTORS_PARTLY),
    scoring.RerankRequest: Facts(
        ignored=("user", "max_chunks_per_doc"),
        partly={**_VECTORS_PARTLY, "relevant_spans": "only with `mode: disabled`"},
    ),
    TranscriptionForm: Facts(
        ("vllm_xargs", "known_speaker_names", "known_speaker_references"),
        partly=_TRANSCRIPTION_PARTLY,
    ),
    TranslationForm: Facts(
        ("vllm_xargs",),
        partly=_TRANSCRIPTION_PARTLY,
    ),
    ollama.OllamaChatRequest: Facts(ignored=ollama.CHAT_IGNORED, partly=_OLLAMA_PARTLY),
    ollama.OllamaGenerateRequest: Facts(
        ollama.REFUSED, ollama.CHAT_IGNORED, {**_OLLAMA_PARTLY, "images": "not with `raw`"}
    ),
    ollama.OllamaEmbedRequest: Facts(ignored=("keep_alive", "options")),
    ollama.OllamaEmbeddingsRequest: Facts(ignored=("keep_alive", "options")),
    ollama.OllamaModelRequest: Facts(ignored=("verbose", "insecure", "stream")),
    llama_cpp.LlamaCompletionRequest: Facts(llama_cpp.REFUSED, llama_cpp.IGNORED, llama_cpp.PARTLY),
    llama_cpp.LlamaInfillRequest: Facts(llama_cpp.REFUSED, llama_cpp.IGNORED, llama_cpp.PARTLY),
    llama_cpp.LlamaEmbeddingRequest: Facts(partly={"embd_normalize": "only 2 and -1"}),
    sglang_request.SglangRequest: Facts(sglang_request.REFUSED, sglang_request.IGNORED),
    sglang_encode.SglangEncodeRequest: Facts(sglang_encode.REFUSED, sglang_encode.IGNORED),
    SpeechRequest: Facts(ignored=("instructions",)),
    BatchCreate: Facts(ignored=("output_expires_after",)),
    UploadCreate: Facts(ignored=("mime_type",)),
    UpdateFromDiskRequest: Facts(partly={"flush_cache": "only true"}),
}
"""By the type of a request; there is nothing to say of others."""


def _requests(operations: Operations) -> list[Request]:
    """Each kind of request, in the order of the endpoints that take it."""
    found: dict[tuple[type[msgspec.Struct], str], list[str]] = {}
    for name, operation in operations.items():
        taken = [(operation.body, ""), (operation.form, operation.file_field)]
        if operation.other is not None:
            taken.append((operation.other.body, ""))
        for kind, file_field in taken:
            if kind is not None:
                found.setdefault((kind, file_field), []).append(name.rpartition(" ")[2])
    return [Request(sorted(found[key]), key[0], _FACTS.get(key[0], Facts()), key[1]) for key in found]


REQUESTS: Final = _requests(OPERATIONS)

_HEAD: Final = """# Fields of requests

The fields of each endpoint's request body. This page is generated from the program: `make reference`.

- A field without a remark takes effect, within the range of its type. A value outside the range is a 400 that names the
  field.
- *Ignored*: accepted without effect. Fields that a table does not list are ignored, too.
- *Refused*: a 400 with the code `unsupported` (for a form `invalid_value`; for Anthropic's `thread` a code of its own).
  `null`, `false` and empty values are not refused.
- `null` means that a field is absent.

[Endpoints](endpoints.md) describes the endpoints; [limits](../operate/limits.md) further bounds on lists and texts.
"""


def fields_page() -> str:
    """``fields.md``, in Markdown."""
    return "\n".join((_HEAD, *(_section(request) for request in REQUESTS)))


def _section(request: Request) -> str:
    rows = "\n".join(_rows(request))
    names = ", ".join(f"`POST {endpoint}`" for endpoint in request.endpoints)
    form = f"A multipart form, with a `{request.file_field}` beside these fields.\n\n" if request.file_field else ""
    return f"## {names}\n\n{form}| field | type | default | |\n|---|---|---|---|\n{rows}\n"


def _rows(request: Request) -> list[str]:
    described = inspect.type_info(request.type)
    assert isinstance(described, inspect.StructType)
    rows = []
    for each in described.fields:
        name = each.encode_name
        rows.append(f"| `{name}` | {_type(each.type)} | {_default(each)} | {_remark(request, name)} |")
    known = {each.encode_name for each in described.fields}
    rows += [f"| `{name}` | | | ignored |" for name in request.facts.ignored if name not in known]
    return rows


def _remark(request: Request, name: str) -> str:
    if name in request.facts.refused:
        return "refused"
    return "ignored" if name in request.facts.ignored else request.facts.partly.get(name, "")


def _default(described: inspect.Field) -> str:
    if described.required:
        return "required"
    value: Any = described.default
    return "" if value in (None, UNSET, NODEFAULT) else f"`{msgspec.json.encode(value).decode()}`"


def _type(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            return _type(kind.type)
        case inspect.UnionType():
            return " or ".join(dict.fromkeys(_type(one) for one in kind.types if not isinstance(one, inspect.NoneType)))
        case inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case inspect.CollectionType():
            return f"list of {_type(kind.item_type)}"
        case inspect.StructType() | inspect.DictType():
            return "object"
        case inspect.BoolType():
            return "boolean"
        case inspect.StrType():
            return "string" + _length(kind.min_length, kind.max_length)
        case inspect.IntType():
            return "integer" + _range(kind.gt, kind.ge, kind.lt, kind.le)
        case inspect.FloatType():
            return "number" + _range(kind.gt, kind.ge, kind.lt, kind.le)
        case _:
            return "any"


def _length(least: int | None, most: int | None) -> str:
    bounds = [*(["not empty"] if least else []), *([f"at most {most} characters"] if most is not None else [])]
    return f" ({', '.join(bounds)})" if bounds else ""


def _range(above: float | None, least: float | None, below: float | None, most: float | None) -> str:
    low = f"> {above:g}" if above is not None else f"≥ {least:g}" if least is not None and least > -_LARGE - 1 else ""
    high = f"< {below:g}" if below is not None else f"≤ {most:g}" if most is not None and most < _LARGE else ""
    bounds = [bound for bound in (low, high) if bound]
    return f" {' and '.join(bounds)}" if bounds else ""
