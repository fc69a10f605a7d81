"""Every field that an SDK can send is one that a request has, or one that the page of endpoints says is ignored."""

from typing import Any, get_type_hints

import anthropic.types.beta.message_create_params as beta_messages
import anthropic.types.message_count_tokens_params as counting
import anthropic.types.message_create_params as messages
import msgspec
import openai.types.chat.completion_create_params as chats
import openai.types.completion_create_params as completions
import openai.types.responses.response_create_params as responses
import pytest

from stentor.protocols.anthropic import request as anthropic_request
from stentor.protocols.openai import sampling
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.completions import CompletionRequest
from stentor.protocols.openai.responses import request as responses_request

CHAT, MESSAGES = sampling.IGNORED_FIELDS, anthropic_request.IGNORED_FIELDS
MESSAGES_REQUEST = anthropic_request.MessagesRequest


@pytest.mark.parametrize(
    ("sent", "request_type", "ignored"),
    [
        (chats.CompletionCreateParamsStreaming, ChatRequest, CHAT),
        (chats.CompletionCreateParamsNonStreaming, ChatRequest, CHAT),
        (completions.CompletionCreateParamsStreaming, CompletionRequest, CHAT),
        (responses.ResponseCreateParamsStreaming, responses_request.ResponseRequest, responses_request.IGNORED_FIELDS),
        (messages.MessageCreateParamsStreaming, MESSAGES_REQUEST, MESSAGES),
        (beta_messages.MessageCreateParamsStreaming, MESSAGES_REQUEST, MESSAGES),
        (counting.MessageCountTokensParams, anthropic_request.CountTokensRequest, MESSAGES),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_no_field_is_passed_over(sent: Any, request_type: type[msgspec.Struct], ignored: tuple[str, ...]) -> None:
    assert set(get_type_hints(sent)) <= {*request_type.__struct_fields__, *ignored}
