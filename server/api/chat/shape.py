"""What a chat completion is to hold, streamed or whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex

from stentor.protocols.ipc.deltas import Finish
from stentor.protocols.openai.chat import ChatFinishReason
from stentor.protocols.openai.tools import NO_TOOLS, ToolUse

from ..common.chunks import AnswerShape

_ID_BYTES = 12


@dataclass(frozen=True, kw_only=True)
class ChatShape(AnswerShape):
    prompt: list[int]
    top_logprobs: int | None = None
    """None: no log-probabilities."""
    include_reasoning: bool = True
    """False: nor are its tokens and their log-probabilities shown, in which it could be read."""
    tools: ToolUse = NO_TOOLS
    media_tokens: Mapping[str, int] = field(default_factory=dict)
    """Of the prompt, how many stand for media of each modality."""

    def finish_reason(self, finish: Finish, called: bool, whole: bool) -> ChatFinishReason:
        """As OpenAI has it: where the client named the one tool to call, an answer that has called it has stopped.

        ``whole``: the last call has come to its end. One that a stop string has cut off is not there to be made.
        """
        if finish.reason == "length":
            return "length"
        if not called or self.tools.named or not (whole or finish.stop_reason is None):
            return "stop"
        return "function_call" if self.tools.legacy else "tool_calls"


def call_id(given: str | None) -> str:
    """``given`` by the model, or a new one."""
    return given or f"call_{token_hex(_ID_BYTES)}"
