"""A worker process without a model whose steps gain a row 1 to 5 tokens, so that one message has several.

A token follows from the prompt's first token and its own number among the outputs, and from nothing else.
"""

import sys
from dataclasses import dataclass
from zlib import crc32

from stentor.engine.worker.rows.rows import with_forks
from stentor.loadtest.echo_worker import serve
from stentor.protocols.ipc.steps import StepPlan, StepResult, TokenLogprobs

MAX_DRAFTS = 4
_STEP_SECONDS = 0.005


def token_of(first: int, index: int) -> int:
    """Output ``index`` of a prompt that begins with ``first``."""
    return 100 + crc32(f"{first} {index}".encode()) % 400


@dataclass
class _Row:
    first: int
    outputs: int
    logprobs: bool


class _Ragged:
    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}

    def step(self, plan: StepPlan) -> StepResult:
        for new in with_forks(plan).new:
            wanted = new.params.logprobs is not None
            self._rows[new.slot] = _Row(new.tokens[0], len(new.tokens) - new.prompt_len, wanted)
        tokens: list[int] = []
        counts: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        for step in plan.rows:
            if not step.sample:
                continue
            row = self._rows[step.slot]
            counts.append(1 + crc32(f"{row.first} {row.outputs} {plan.step}".encode()) % (1 + step.num_drafts))
            for _ in range(counts[-1]):
                token = token_of(row.first, row.outputs)
                tokens.append(token)
                logprobs.append(TokenLogprobs(token, -float(row.outputs), 1, []) if row.logprobs else None)
                row.outputs += 1
        said = logprobs if any(entry is not None for entry in logprobs) else None
        return StepResult(plan.epoch, plan.step, tokens, said, [], 0.0, counts=counts)


def main() -> int:
    return serve(_Ragged().step, _STEP_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
