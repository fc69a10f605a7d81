"""The requested contents of a chat completion, streamed or whole."""

from collections.abc import Iterable, Mapping
from secrets import token_hex
from typing import Self

import msgspec
from starlette.requests import Request

from stentor.protocols.ipc.deltas import Finish
from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.openai.chat import ChatFinishReason, ChatRequest, ChoiceLogprobs
from stentor.protocols.openai.tools import NO_TOOLS, ToolUse

from ...config.models import ModelConfig
from ...generation.logprobs import chat_logprobs
from ...generation.prepare import PreparedGeneration
from ..common.chunks import AnswerShape

_ID_BYTES = 12


class ChatShape(AnswerShape, frozen=True, kw_only=True):
    prompt: list[int]
    top_logprobs: int | None = None
    """None: no log-probabilities."""
    named_logprobs: bool = False
    """The alternatives are the tokens of ``logprob_token_ids``. The sampled token is then one of them, as in vLLM."""
    include_reasoning: bool = True
    """False: nor are its tokens and their log-probabilities shown, in which it could be read."""
    tools: ToolUse = NO_TOOLS
    prompt_text: str | None = None
    """The prompt with its special tokens, if the answer has it."""
    echo: str = ""
    """The text that each choice begins with."""
    media_tokens: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Prompt tokens of media, by modality."""

    @classmethod
    def of_prepared(
        cls,
        request: Request,
        body: ChatRequest,
        prepared: PreparedGeneration,
        config: ModelConfig,
        prompt_text: str | None = None,
    ) -> Self:
        return cls.of(
            "chatcmpl",
            request,
            body,
            prepared.model,
            prepared.names,
            config=config,
            prompt=prepared.prompt,
            prompt_text=prompt_text,
            echo=body.echoed,
            top_logprobs=body.wanted_logprobs,
            named_logprobs=body.logprob_token_ids is not None,
            include_reasoning=body.include_reasoning,
            tools=prepared.tools,
            media_tokens=prepared.media_tokens,
            experts=prepared.experts,
        )

    def logprobs(self, entries: Iterable[TokenLogprobs]) -> ChoiceLogprobs:
        return chat_logprobs(entries, self.names, self.top_logprobs or 0, with_sampled=self.named_logprobs)

    def finish_reason(self, finish: Finish, called: bool, whole: bool) -> ChatFinishReason:
        """OpenAI's finish reason: ``stop`` if the client named the one tool and the answer called it.

        ``whole``: the last call is complete. A call that a stop string cut off cannot be made.
        """
        if finish.reason == "length":
            return "length"
        if not called or self.tools.named or not (whole or finish.stop_reason is None):
            return "stop"
        return "function_call" if self.tools.legacy else "tool_calls"


def call_id(given: str | None) -> str:
    """``given`` by the model, or a new one."""
    return given or f"call_{token_hex(_ID_BYTES)}"
