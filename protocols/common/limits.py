"""Every bound on what one request may ask for. All are checked before any work is done.

:class:`Limits` are the operator's; what follows it are ceilings that nobody moves.
"""

from typing import Final

import msgspec

from ..ipc.sampling import MAX_LOGPROBS


class Limits(msgspec.Struct, frozen=True):
    max_body_bytes: int = 32 << 20
    body_timeout: float = 120.0
    """Seconds for a body to come in whole."""
    max_json_depth: int = 64
    max_json_values: int = 1 << 19
    """A body's commas, and its colons and opening brackets eight times, also those within texts: roughly what
    decoding it costs, before it does. At this many it takes some 10 to 30 ms, in which no stream goes on."""
    max_prompts: int = 1024
    max_choices: int = 128
    """``n`` and ``best_of``, of one prompt."""
    max_sequences: int = 1024
    """Prompts of one request times ``n``."""
    max_messages: int = 16384
    max_prompt_tokens: int = 0
    """Of each prompt; 0: as many as the context holds."""
    max_prompt_chars: int = 8 << 20
    """Of all prompts or messages of a request together."""
    max_template_chars: int = 1 << 16
    """Of a chat template that a request brings."""
    max_stop_strings: int = 16
    max_stop_length: int = 1024
    """Characters of one stop string; the stream may have to hold back as many."""
    max_stop_tokens: int = 256
    max_bad_words: int = 256
    max_bad_word_length: int = 1024
    """Characters of one."""
    max_logit_bias: int = 4096
    max_allowed_tokens: int = 1 << 17
    max_logprobs: int = MAX_LOGPROBS
    """Alternatives for each token, of the prompt too."""
    max_schema_chars: int = 1 << 18
    """Of a JSON schema for the answer, as compact JSON in bytes."""
    max_schema_depth: int = 48
    max_regex_chars: int = 1 << 14
    """Of a pattern that the answer must match."""
    max_grammar_chars: int = 1 << 18
    """Of a grammar for the answer, and of all its choices together."""
    max_answer_choices: int = 1 << 12
    max_answer_bytes: int = 256 << 20
    """Of an answer that does not stream, and of what a stream repeats of its prompts. What a request asks for is
    estimated before anything is computed."""


MAX_TOKEN_RULES: Final = 1 << 18
"""Entries of ``logit_bias``, and of each list of token ids, times the prompts of the request: every prompt has them of
its own in the engine, and a hundred million would be there before anybody could look up."""
MAX_SPEECH_CHARS: Final = 1 << 16
"""Of a text to be spoken: more than an hour of it."""
MAX_TOOLS: Final = 1024
"""Of one request."""
MAX_TOOL_DESCRIPTION: Final = 1 << 16
"""Characters."""
MAX_NAME_LENGTH: Final = 512
"""Characters of a model name, a cache salt, and the like."""
MAX_REQUEST_ID: Final = 128
"""Characters of a request id; a longer one is replaced."""
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
