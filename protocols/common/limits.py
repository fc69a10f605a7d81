"""Every bound on one request, all checked before any work.

:class:`Limits` are the operator's; the constants below are fixed ceilings.
"""

from typing import Annotated, Final

import msgspec

from ..ipc.flag import Flag
from ..ipc.sampling import MAX_LOGPROBS

MAX_TEMPLATE_CHARS: Final = 1 << 18
"""Characters of a chat template's source, including the model's own."""


class Limits(msgspec.Struct, frozen=True):
    max_body_bytes: Annotated[
        int, Flag("bytes of a request's body; a longer one gets 413", kind="size", name="max-body-size")
    ] = 32 << 20
    body_timeout: Annotated[float, Flag("time limit for receiving a body; then 408", kind="some_seconds")] = 120.0
    max_json_depth: Annotated[int, Flag("levels of lists and objects in a body", 4, 512)] = 64
    max_json_values: Annotated[
        int,
        Flag(
            "number of commas in a body plus eight times its colons and opening brackets, also inside "
            "strings: a measure of decoding time",
            1,
        ),
    ] = 1 << 19
    """It measures the cost of decoding before that begins: 10 to 30 ms at this many, in which no stream goes on."""
    max_prompts: Annotated[int, Flag("prompts of one request for completions", 1, 2**20)] = 1024
    max_choices: Annotated[int, Flag("largest n and best_of", 1, 2**20)] = 128
    max_sequences: Annotated[int, Flag("prompts times n of one request", 1, 2**20)] = 1024
    max_messages: Annotated[int, Flag("messages of one conversation", 1, 2**20)] = 16384
    max_prompt_tokens: Annotated[int, Flag("tokens of a prompt; 0 means the model's context")] = 0
    max_prompt_chars: Annotated[int, Flag("characters of all texts of a request's prompts or messages", 1)] = 8 << 20
    max_template_chars: Annotated[int, Flag("characters of a request's chat template", 1, MAX_TEMPLATE_CHARS)] = 1 << 16
    max_stop_strings: Annotated[int, Flag("stop strings of a request", 1, 65536)] = 16
    max_stop_length: Annotated[int, Flag("characters of a stop string", 1, 2**20)] = 1024
    max_stop_tokens: Annotated[int, Flag("entries of stop_token_ids", 1, 2**20)] = 256
    max_bad_words: Annotated[int, Flag("entries of bad_words", 1, 2**20)] = 256
    max_bad_word_length: Annotated[int, Flag("characters of an entry of bad_words", 1, 2**20)] = 1024
    max_logit_bias: Annotated[int, Flag("entries of logit_bias", 1, 2**20)] = 4096
    max_allowed_tokens: Annotated[int, Flag("entries of allowed_token_ids", 1, 2**20)] = 1 << 17
    max_logprobs: Annotated[int, Flag("largest top_logprobs, logprobs and prompt_logprobs", 0, MAX_LOGPROBS)] = (
        MAX_LOGPROBS
    )
    max_schema_chars: Annotated[int, Flag("bytes of a JSON schema for the answer, without white space", 1, 2**24)] = (
        1 << 18
    )
    max_schema_depth: Annotated[int, Flag("levels of a JSON schema for the answer", 1, 100)] = 48
    max_regex_chars: Annotated[int, Flag("characters of a pattern that the answer must match", 1, 2**20)] = 1 << 14
    max_grammar_chars: Annotated[
        int, Flag("characters of a grammar for the answer, and of all its choices together", 1, 2**24)
    ] = 1 << 18
    max_answer_choices: Annotated[int, Flag("choices of an answer (structured_outputs.choice)", 1, 2**20)] = 1 << 12
    max_answer_bytes: Annotated[
        int,
        Flag(
            "bytes of an answer without streaming, and of prompts that a stream echoes; requests for more get 400",
            kind="size",
            name="max-answer-size",
        ),
    ] = 256 << 20
    """The size is estimated before anything is computed."""


MAX_TOKEN_RULES: Final = 1 << 18
"""Entries of ``logit_bias``, and of each list of token ids, times the request's prompts. Each prompt has its own copy
in the engine, and a hundred million entries would exhaust its memory at once."""
MAX_SPEECH_CHARS: Final = 1 << 16
"""Characters of a text to be spoken: more than an hour of audio."""
MAX_TOOLS: Final = 1024
"""Tools of one request."""
MAX_TOOL_DESCRIPTION: Final = 1 << 16
"""Characters."""
MAX_NAME_LENGTH: Final = 512
"""Characters of a model name, a cache salt, and the like."""
MAX_REQUEST_ID: Final = 128
"""Characters of a request id; a longer one is replaced."""
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
Priority = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
"""Of a request; lower runs earlier."""
