"""What a chat completion is to hold, streamed or whole."""

from dataclasses import dataclass
from secrets import token_hex

from stentor.protocols.ipc.deltas import Finish
from stentor.protocols.openai.chat import ChatFinishReason
from stentor.protocols.openai.tools import NO_TOOLS, ToolUse

from ...generation.logprobs import TokenNames

_ID_BYTES = 12


@dataclass(frozen=True)
class ChatShape:
    """What the client asked its answer to hold."""

    response_id: str
    created: int
    model: str
    prompt: list[int]
    n: int
    names: TokenNames
    top_logprobs: int | None = None
    """None: no log-probabilities."""
    prompt_logprobs: int | None = None
    token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    include_reasoning: bool = True
    """False: nor are its tokens and their log-probabilities shown, in which it could be read."""
    tools: ToolUse = NO_TOOLS

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
