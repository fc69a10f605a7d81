"""What happens when more is asked than can be done."""

from typing import Final

from .. import kinds
from ..option import INT64, Option

OPTIONS: Final = (
    Option(
        "max-queued-requests",
        "overload.max_queued_requests",
        kinds.integer(0, INT64),
        "requests that may wait for their first token, whatever their choices; a further one gets 429; 0 is no limit",
        "overload",
        aliases=("max-num-queued-reqs",),
    ),
    Option(
        "max-queued-tokens",
        "overload.max_queued_tokens",
        kinds.integer(0, INT64),
        "prompt tokens that may wait; a further request gets 429 unless it is alone; 0 is no limit",
        "overload",
    ),
    Option(
        "max-inflight-bytes",
        "overload.max_inflight_bytes",
        kinds.size(),
        "bytes of memory for all that is held for clients at the same time (bodies and what is decoded of them, "
        "prompts, stored items in use, messages of WebSockets), half of it for texts that are being tokenized; a "
        "further request gets 429, or 413 where it never fits; by default a quarter of the container's or machine's "
        "memory, at most 1 GiB",
        "overload",
        aliases=("max-inflight-body-bytes", "max-held-body-size"),
    ),
    Option(
        "max-queued-templates",
        "limits.template.max_waiting",
        kinds.integer(0, 65536),
        "requests with a chat template of their own that may wait for it to be rendered; a further one gets 429; 0 "
        "lets none wait",
        "overload",
    ),
    Option(
        "max-queued-grammars",
        "limits.grammar.max_waiting",
        kinds.integer(0, 65536),
        "grammars of answers and tools that may wait while another one is checked; a further one gets 429; 0 lets "
        "none wait",
        "overload",
    ),
    Option(
        "request-timeout",
        "overload.request_timeout",
        kinds.seconds(),
        "how long a request may take from its arrival to its last token; 0 is no limit; a client may shorten it by "
        "the header x-request-timeout",
        "overload",
    ),
    Option(
        "priority-aging-seconds",
        "engine.scheduler.priority_aging_seconds",
        kinds.seconds(),
        "waiting time that makes up for one level of priority; 0 takes no notice of priorities",
        "overload",
    ),
    Option(
        "stream-buffer",
        "overload.stream_buffer",
        kinds.size(),
        "bytes that may wait for a client that reads slowly, before its stream is paused",
        "overload",
    ),
    Option(
        "slow-reader-timeout",
        "overload.slow_reader_timeout",
        kinds.seconds(),
        "how long a client may take next to nothing of what waits for it, before it is dropped; 0 waits for ever",
        "overload",
    ),
)
