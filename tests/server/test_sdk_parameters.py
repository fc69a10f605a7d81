"""Every parameter of the SDKs' methods is taken, ignored or refused by name: the page of fields says which."""

import inspect
from collections.abc import Callable
from typing import Any, Final

import anthropic
import msgspec
import openai
import pytest

from stentor.server.main.request_fields import REQUESTS

CLIENT: Final = openai.OpenAI(api_key="unused")
MESSAGES: Final = anthropic.Anthropic(api_key="unused")
METHODS: Final[dict[str, list[Callable[..., Any]]]] = {
    "/v1/chat/completions": [CLIENT.chat.completions.create],
    "/v1/completions": [CLIENT.completions.create],
    "/v1/responses": [CLIENT.responses.create, CLIENT.beta.responses.create],
    "/v1/responses/input_tokens": [CLIENT.responses.input_tokens.count],
    "/v1/responses/compact": [CLIENT.responses.compact],
    "/v1/conversations": [CLIENT.conversations.create],
    "/v1/conversations/{conversation_id}/items": [CLIENT.conversations.items.create],
    "/v1/decisions": [CLIENT.decisions.create],
    "/v1/embeddings": [CLIENT.embeddings.create],
    "/v1/moderations": [CLIENT.moderations.create],
    "/v1/audio/transcriptions": [CLIENT.audio.transcriptions.create],
    "/v1/audio/translations": [CLIENT.audio.translations.create],
    "/v1/audio/speech": [CLIENT.audio.speech.create],
    "/v1/realtime/client_secrets": [CLIENT.realtime.client_secrets.create],
    "/v1/batches": [CLIENT.batches.create],
    "/v1/uploads": [CLIENT.uploads.create],
    "/v1/uploads/{upload_id}/complete": [CLIENT.uploads.complete],
    "/v1/messages": [MESSAGES.messages.create, MESSAGES.beta.messages.create],
    "/v1/messages/count_tokens": [MESSAGES.messages.count_tokens, MESSAGES.beta.messages.count_tokens],
    "/v1/messages/batches": [MESSAGES.messages.batches.create, MESSAGES.beta.messages.batches.create],
}
ELSEWHERE: Final = {"extra_headers", "extra_query", "extra_body", "timeout", "betas"}
"""Parameters of every method that are no fields of a body."""
NO_FIELDS: Final = {
    "/v1/conversations/{conversation_id}/items": {"conversation_id", "include"},  # in the address
    "/v1/uploads/{upload_id}/complete": {"upload_id"},
    "/v1/audio/transcriptions": {"file"},
    "/v1/audio/translations": {"file"},
    "/v1/messages/batches": {"user_profile_id", "workspace_id"},  # headers
}


@pytest.mark.parametrize("path", METHODS)
def test_each_parameter_of_the_sdks_has_a_row_in_the_page_of_fields(path: str) -> None:
    (request,) = (each for each in REQUESTS if path in each.endpoints)
    described = msgspec.inspect.type_info(request.type)
    assert isinstance(described, msgspec.inspect.StructType)
    rows = {each.encode_name for each in described.fields} | {*request.facts.ignored}
    for method in METHODS[path]:
        parameters = {*inspect.signature(method).parameters} - ELSEWHERE - NO_FIELDS.get(path, set())
        assert parameters <= rows, method
