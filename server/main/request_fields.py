"""The fields of every request, for ``docs/reference/fields.md``: type, default, and whether they have an effect."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, UNSET, inspect

from stentor.protocols.anthropic import request as anthropic
from stentor.protocols.anthropic.batches import MessageBatchCreate
from stentor.protocols.cohere import chat as cohere_chat
from stentor.protocols.hugging_face import request as hugging_face
from stentor.protocols.llama_cpp import request as llama_cpp
from stentor.protocols.ollama import request as ollama
from stentor.protocols.openai import (
    chat,
    chat_batch,
    completions,
    decisions,
    generate,
    label_scores,
    sampling,
    systemone,
)
from stentor.protocols.openai.batches import BatchCreate
from stentor.protocols.openai.realtime.live import LiveCreateRequest
from stentor.protocols.openai.realtime.secrets import ClientSecretRequest
from stentor.protocols.openai.realtime.translation import TranslationSecretRequest
from stentor.protocols.openai.responses import conversations
from stentor.protocols.openai.responses import request as responses
from stentor.protocols.openai.speech import SpeechRequest
from stentor.protocols.openai.stored_chats import ChatUpdate
from stentor.protocols.openai.tokens import DetokenizeRequest, TokenizeRequest
from stentor.protocols.openai.transcription import TranscriptionForm, TranslationForm
from stentor.protocols.openai.uploads import UploadComplete, UploadCreate
from stentor.protocols.pooling import cohere, embeddings, pooling, scoring
from stentor.protocols.pooling.moderation import ModerationRequest
from stentor.protocols.sglang import encode as sglang_encode
from stentor.protocols.sglang import request as sglang_request

from ..api.ops.adapters import LoadAdapterRequest, UnloadAdapterRequest
from ..api.ops.control import AbortRequest
from ..api.ops.sglang import AbortGenerationRequest, MemoryRequest, PauseGenerationRequest, UpdateFromDiskRequest
from ..api.ops.weights import UpdateVersionRequest, UpdateWeightsRequest

_LARGE: Final = 2**31 - 1
"""A bound from here on only says how wide the number is."""


class Request(msgspec.Struct, frozen=True):
    """One kind of request, with facts about its fields that its type lacks."""

    endpoints: tuple[str, ...]
    type: type[msgspec.Struct]
    refused: Sequence[str] = ()
    """Fields that get a 400 with the code ``unsupported``, whatever their value."""
    ignored: Sequence[str] = ()
    """Fields that are accepted and have no effect; those with a dot are inside of another field."""
    partly: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Values that a field may have, where others are refused."""
    form: bool = False
    """Fields of a multipart form, beside a file."""


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
    "to_language": "only English",
}

REQUESTS: Final[tuple[Request, ...]] = (
    Request(
        (
            "/v1/chat/completions",
            "/v1/chat/completions/render",
            "/v1/chat/completions/input_tokens",
            "/apply-template",
        ),
        chat.ChatRequest,
        (*sampling.REFUSED_EVERYWHERE, *chat.REFUSED),
        (*_SAMPLING_IGNORED, *chat.IGNORED_FIELDS),
        {"modalities": 'only `["text"]`', **_OFFSETS_PARTLY, **_BEAMS_PARTLY, **sampling.METHODS_PARTLY},
    ),
    Request(
        ("/v1/chat/completions/batch",),
        chat_batch.ChatBatchRequest,
        (*sampling.REFUSED_EVERYWHERE, *chat.REFUSED, *chat_batch.ALONE),
        (*_SAMPLING_IGNORED, *chat.IGNORED_FIELDS),
        {"modalities": 'only `["text"]`', "n": "only 1", "best_of": "only 1", **sampling.METHODS_PARTLY},
    ),
    Request(("/v1/chat/completions/{completion_id}",), ChatUpdate),
    Request(
        ("/v1/completions", "/v1/completions/render"),
        completions.CompletionRequest,
        (*sampling.REFUSED_EVERYWHERE, *completions.REFUSED),
        (*_SAMPLING_IGNORED, "store", "metadata"),
        {**_OFFSETS_PARTLY, **_BEAMS_PARTLY, **sampling.METHODS_PARTLY},
    ),
    Request(("/inference/v1/generate",), generate.TokensRequest, generate.REFUSED),
    Request(("/generative_scoring",), label_scores.GenerativeScoringRequest),
    Request(
        ("/v1/responses", "/v1/responses/render"),
        responses.ResponseRequest,
        (*responses.REFUSED, *responses.MOVED),
        responses.IGNORED_FIELDS,
        {"include_reasoning": "only true"},
    ),
    Request(("/v1/systemone",), systemone.SystemOneRequest, systemone.REFUSED),
    Request(("/v1/decisions",), decisions.DecisionRequest, ignored=decisions.IGNORED_FIELDS),
    Request(("/v1/responses/input_tokens",), responses.ContextFields, ignored=("personality",)),
    Request(
        ("/v1/responses/compact",),
        responses.CompactRequest,
        ignored=("image", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "service_tier"),
    ),
    Request(("/v1/conversations",), conversations.ConversationCreate),
    Request(("/v1/conversations/{conversation_id}",), conversations.ConversationUpdate),
    Request(("/v1/conversations/{conversation_id}/items",), conversations.ItemsCreate),
    Request(
        ("/v1/messages", "/v1/messages/render"),
        anthropic.MessagesRequest,
        (*anthropic.REFUSED, "thread"),
        anthropic.IGNORED_FIELDS,
    ),
    Request(
        ("/v1/messages/count_tokens",),
        anthropic.CountTokensRequest,
        (*anthropic.REFUSED, "thread"),
        anthropic.IGNORED_FIELDS,
    ),
    Request(("/v1/messages/batches",), MessageBatchCreate),
    Request(
        ("/v1/embeddings",),
        embeddings.EmbeddingRequest,
        (*embeddings.REFUSED, "images"),
        ("user",),
        {**_VECTORS_PARTLY, "embedding_type": "only `float` or `base64`"},
    ),
    Request(("/v2/chat",), cohere_chat.CohereChatRequest, cohere_chat.REFUSED, partly=cohere_chat.PARTLY),
    Request(("/v2/embed",), cohere.EmbedRequest),
    Request(("/pooling",), pooling.PoolingRequest, ignored=("user",), partly=_VECTORS_PARTLY),
    Request(("/v1/moderations",), ModerationRequest),
    Request(("/classify",), pooling.ClassifyRequest, ignored=("user",), partly=_VECTORS_PARTLY),
    Request(("/score", "/v1/score"), scoring.ScoreRequest, (), ("user",), _VECTORS_PARTLY),
    Request(
        ("/rerank", "/v1/rerank", "/v2/rerank"),
        scoring.RerankRequest,
        ignored=("user", "max_chunks_per_doc"),
        partly={**_VECTORS_PARTLY, "relevant_spans": "only with `mode: disabled`"},
    ),
    Request(
        ("/v1/audio/transcriptions",),
        TranscriptionForm,
        ("vllm_xargs", "known_speaker_names", "known_speaker_references"),
        partly={**_TRANSCRIPTION_PARTLY, "response_format": "`diarized_json`: of models that tell speakers apart"},
        form=True,
    ),
    Request(
        ("/v1/audio/translations",),
        TranslationForm,
        ("vllm_xargs",),
        partly={**_TRANSCRIPTION_PARTLY, "response_format": "`diarized_json`: of models that tell speakers apart"},
        form=True,
    ),
    Request(
        ("/api/chat",),
        ollama.OllamaChatRequest,
        ignored=ollama.CHAT_IGNORED,
        partly=_OLLAMA_PARTLY,
    ),
    Request(
        ("/api/generate",),
        ollama.OllamaGenerateRequest,
        ollama.REFUSED,
        ollama.CHAT_IGNORED,
        {**_OLLAMA_PARTLY, "images": "not with `raw`"},
    ),
    Request(("/api/embed",), ollama.OllamaEmbedRequest, ignored=("keep_alive", "options")),
    Request(("/api/embeddings",), ollama.OllamaEmbeddingsRequest, ignored=("keep_alive", "options")),
    Request(("/api/show",), ollama.OllamaModelRequest, ignored=("verbose", "insecure", "stream")),
    Request(("/api/pull",), ollama.OllamaModelRequest, ignored=("verbose", "insecure", "stream")),
    Request(
        ("/completion", "/completions"),
        llama_cpp.LlamaCompletionRequest,
        llama_cpp.REFUSED,
        llama_cpp.IGNORED,
        llama_cpp.PARTLY,
    ),
    Request(("/infill",), llama_cpp.LlamaInfillRequest, llama_cpp.REFUSED, llama_cpp.IGNORED, llama_cpp.PARTLY),
    Request(("/embedding", "/embeddings"), llama_cpp.LlamaEmbeddingRequest, partly={"embd_normalize": "only 2 and -1"}),
    Request(("/", "/generate", "/generate_stream"), hugging_face.GenerateRequest),
    Request(("/generate",), sglang_request.SglangRequest, sglang_request.REFUSED, sglang_request.IGNORED),
    Request(("/encode", "/classify"), sglang_encode.SglangEncodeRequest, sglang_encode.REFUSED, sglang_encode.IGNORED),
    Request(("/embed",), hugging_face.EmbedInputsRequest),
    Request(("/embed_all", "/embed_sparse"), hugging_face.TokenEmbedRequest),
    Request(("/predict",), hugging_face.PredictRequest),
    Request(("/similarity",), hugging_face.SimilarityRequest),
    Request(("/invocations",), hugging_face.InvocationRequest),
    Request(("/v1/audio/speech",), SpeechRequest, ignored=("instructions",)),
    Request(("/v1/realtime/client_secrets",), ClientSecretRequest),
    Request(("/v1/realtime/translations/client_secrets",), TranslationSecretRequest),
    Request(("/v1/live/sessions",), LiveCreateRequest),
    Request(("/v1/batches",), BatchCreate, ignored=("output_expires_after",)),
    Request(("/v1/uploads",), UploadCreate, ignored=("mime_type",)),
    Request(("/v1/uploads/{upload_id}/complete",), UploadComplete),
    Request(("/tokenize",), TokenizeRequest),
    Request(("/detokenize",), DetokenizeRequest),
    Request(("/abort_requests",), AbortRequest),
    Request(("/update_weights",), UpdateWeightsRequest),
    Request(("/update_weight_version",), UpdateVersionRequest),
    Request(("/update_weights_from_disk",), UpdateFromDiskRequest, partly={"flush_cache": "only true"}),
    Request(("/pause_generation",), PauseGenerationRequest),
    Request(("/release_memory_occupation", "/resume_memory_occupation"), MemoryRequest),
    Request(("/abort_request",), AbortGenerationRequest),
    Request(("/v1/load_lora_adapter", "/load_lora_adapter"), LoadAdapterRequest),
    Request(("/v1/unload_lora_adapter", "/unload_lora_adapter"), UnloadAdapterRequest),
)

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
    form = "A multipart form, with a `file` beside these fields.\n\n" if request.form else ""
    return f"## {names}\n\n{form}| field | type | default | |\n|---|---|---|---|\n{rows}\n"


def _rows(request: Request) -> list[str]:
    described = inspect.type_info(request.type)
    assert isinstance(described, inspect.StructType)
    rows = []
    for each in described.fields:
        name = each.encode_name
        rows.append(f"| `{name}` | {_type(each.type)} | {_default(each)} | {_remark(request, name)} |")
    known = {each.encode_name for each in described.fields}
    rows += [f"| `{name}` | | | ignored |" for name in request.ignored if name not in known]
    return rows


def _remark(request: Request, name: str) -> str:
    if name in request.refused:
        return "refused"
    return "ignored" if name in request.ignored else request.partly.get(name, "")


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
