"""What one client may take up. Who asks for more is refused, with an error that names the field."""

from typing import Final

from stentor.protocols.sampling import MAX_LOGPROBS

from .. import option_kinds as kinds
from ..option import INT64, Option
from ..text.limits import MAX_TEMPLATE_CHARS

OPTIONS: Final = (
    Option(
        "max-body-size",
        "limits.request.max_body_bytes",
        kinds.size(),
        "bytes of a request's body; a longer one gets 413",
        "limits",
    ),
    Option(
        "body-timeout",
        "limits.request.body_timeout",
        kinds.some_seconds(),
        "how long a body may take to come in whole; then 408",
        "limits",
    ),
    Option(
        "max-header-size",
        "limits.connection.max_header_bytes",
        kinds.size(),
        "bytes of a request line with its headers; more get 431",
        "limits",
    ),
    Option(
        "max-headers",
        "limits.connection.max_headers",
        kinds.integer(1, 65536),
        "header lines of a request; more get 431",
        "limits",
    ),
    Option(
        "header-timeout",
        "limits.connection.header_timeout",
        kinds.some_seconds(),
        "how long the headers of a request may take to come in; then 408",
        "limits",
    ),
    Option(
        "keep-alive-timeout",
        "limits.connection.keep_alive_timeout",
        kinds.some_seconds(),
        "how long a connection may be idle after a request before it is closed",
        "limits",
    ),
    Option(
        "max-message-size",
        "limits.connection.max_message_bytes",
        kinds.size(),
        "bytes of one message on a WebSocket; a longer one closes it",
        "limits",
    ),
    Option(
        "max-messages-per-second",
        "limits.connection.max_messages_per_second",
        kinds.integer(0, 1 << 20),
        "messages read from one WebSocket; the rest waits at its client; 0 is no limit",
        "limits",
    ),
    Option(
        "max-connections",
        "limits.connection.max_connections",
        kinds.integer(0, 2**20),
        "connections at the same time; a further one gets 429; 0 is no limit",
        "limits",
    ),
    Option(
        "max-connections-per-client",
        "limits.connection.max_per_client",
        kinds.integer(0, 2**20),
        "connections of one address, or of one /64 of IPv6, at the same time; a further one gets 429; 0 is no limit",
        "limits",
    ),
    Option(
        "max-pipelined-requests",
        "limits.connection.max_pipelined",
        kinds.integer(0, 65536),
        "requests that may wait behind another one on their connection; a further one gets 429; 0 lets none wait",
        "limits",
    ),
    Option(
        "max-json-depth",
        "limits.request.max_json_depth",
        kinds.integer(4, 512),
        "levels of lists and objects in a body",
        "limits",
    ),
    Option(
        "max-json-values",
        "limits.request.max_json_values",
        kinds.integer(1, INT64),
        "a body's commas, and its colons and opening brackets eight times, those within texts included: decoding "
        "takes time by them",
        "limits",
    ),
    Option(
        "max-prompts",
        "limits.request.max_prompts",
        kinds.integer(1, 2**20),
        "prompts of one request for completions",
        "limits",
    ),
    Option(
        "max-choices",
        "limits.request.max_choices",
        kinds.integer(1, 2**20),
        "the most that n and best_of may ask for",
        "limits",
    ),
    Option(
        "max-sequences",
        "limits.request.max_sequences",
        kinds.integer(1, 2**20),
        "prompts times n of one request",
        "limits",
    ),
    Option(
        "max-messages", "limits.request.max_messages", kinds.integer(1, 2**20), "messages of one conversation", "limits"
    ),
    Option(
        "max-prompt-tokens",
        "limits.request.max_prompt_tokens",
        kinds.integer(0, INT64),
        "tokens of a prompt; 0 takes as many as the context holds",
        "limits",
    ),
    Option(
        "max-prompt-chars",
        "limits.request.max_prompt_chars",
        kinds.integer(1, INT64),
        "characters of all texts of a request's prompts or messages",
        "limits",
    ),
    Option(
        "max-stop-strings",
        "limits.request.max_stop_strings",
        kinds.integer(1, 65536),
        "stop strings of a request",
        "limits",
    ),
    Option(
        "max-stop-length",
        "limits.request.max_stop_length",
        kinds.integer(1, 2**20),
        "characters of a stop string",
        "limits",
    ),
    Option(
        "max-stop-tokens",
        "limits.request.max_stop_tokens",
        kinds.integer(1, 2**20),
        "entries of stop_token_ids",
        "limits",
    ),
    Option(
        "max-bad-words",
        "limits.request.max_bad_words",
        kinds.integer(1, 2**20),
        "entries of bad_words",
        "limits",
    ),
    Option(
        "max-bad-word-length",
        "limits.request.max_bad_word_length",
        kinds.integer(1, 2**20),
        "characters of an entry of bad_words",
        "limits",
    ),
    Option(
        "max-logit-bias", "limits.request.max_logit_bias", kinds.integer(1, 2**20), "entries of logit_bias", "limits"
    ),
    Option(
        "max-allowed-tokens",
        "limits.request.max_allowed_tokens",
        kinds.integer(1, 2**20),
        "entries of allowed_token_ids",
        "limits",
    ),
    Option(
        "max-logprobs",
        "limits.request.max_logprobs",
        kinds.integer(0, MAX_LOGPROBS),
        "the most that top_logprobs, logprobs and prompt_logprobs may ask for",
        "limits",
    ),
    Option(
        "max-template-chars",
        "limits.request.max_template_chars",
        kinds.integer(1, MAX_TEMPLATE_CHARS),
        "characters of a chat template that a request brings",
        "limits",
    ),
    Option(
        "template-timeout",
        "limits.template.timeout",
        kinds.some_seconds(),
        "how long a chat template may render",
        "limits",
    ),
    Option(
        "max-rendered-chars",
        "limits.template.max_rendered_chars",
        kinds.integer(1, INT64),
        "characters of a rendered conversation, and of any text on the way to it",
        "limits",
    ),
    Option(
        "max-schema-chars",
        "limits.request.max_schema_chars",
        kinds.integer(1, 2**24),
        "bytes of a JSON schema for the answer, written without spaces",
        "limits",
    ),
    Option(
        "max-schema-depth",
        "limits.request.max_schema_depth",
        kinds.integer(1, 100),
        "levels of a JSON schema for the answer",
        "limits",
    ),
    Option(
        "max-regex-chars",
        "limits.request.max_regex_chars",
        kinds.integer(1, 2**20),
        "characters of a pattern that the answer must match",
        "limits",
    ),
    Option(
        "max-grammar-chars",
        "limits.request.max_grammar_chars",
        kinds.integer(1, 2**24),
        "characters of a grammar for the answer, and of all its choices together",
        "limits",
    ),
    Option(
        "max-answer-choices",
        "limits.request.max_answer_choices",
        kinds.integer(1, 2**20),
        "texts of which the answer must be one",
        "limits",
    ),
    Option(
        "grammar-timeout",
        "limits.grammar.timeout",
        kinds.some_seconds(),
        "how long the grammar of an answer or a tool may take to compile",
        "limits",
    ),
    Option(
        "grammar-cache",
        "limits.grammar.cache",
        kinds.integer(1, 2**20),
        "grammars of which it is remembered whether they can be used",
        "limits",
    ),
)
