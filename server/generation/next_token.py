"""The distribution of the one token that a generation makes."""

from contextlib import aclosing

import msgspec

from stentor.protocols.ipc.deltas import Delta, Finish, PromptProcessed, Reasoning, Text

from ..common.errors import generation_error
from ..http.sse import Batches


class NextToken(msgspec.Struct):
    logprobs: dict[int, float] = msgspec.field(default_factory=dict)
    """Of the tokens that the request named."""
    drawn: int | None = None
    """None: a generation that ended without one."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were there before."""


async def next_token(batches: Batches[list[Delta]]) -> NextToken:
    """Reads a generation of one token with log-probabilities, and closes it. Raises as ``generation_error``."""
    found = NextToken()
    finish: Finish | None = None
    async with aclosing(batches):
        async for batch in batches:
            for delta in batch:
                if isinstance(delta, PromptProcessed):
                    found.cached_tokens = delta.cached_tokens
                elif isinstance(delta, Text | Reasoning):
                    for entry in delta.logprobs or ():
                        found.drawn = entry.token
                        found.logprobs.update(entry.top)
                elif isinstance(delta, Finish):
                    finish = delta
    if finish is None or finish.reason not in ("stop", "length"):
        raise generation_error(finish)
    return found
