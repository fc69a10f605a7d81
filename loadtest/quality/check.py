"""The whole check: every way to serve a model against transformers, over the same windows of the same text."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from stentor.engine.loading.checkpoint import Checkpoint
from stentor.protocols.ipc.config import WorkerConfig

from .compare import Agreement, Comparison
from .corpus import windows
from .ours import Scorer, Scores, Window
from .reference import Reference

Show = Callable[[str], None]

DECODE_WINDOW = 128
"""Tokens of each sequence that is decoded one by one."""
LEAST_DECODED = 1024
"""Tokens decoded at each batch size, or the text's own if it has fewer."""


class Case(NamedTuple):
    """One way to serve the model."""

    name: str
    config: WorkerConfig


class Work(NamedTuple):
    """Windows, and how they go through the worker: as prompts, or ``rows`` at a time token by token."""

    name: str
    windows: Sequence[Window]
    rows: int | None = None

    def score(self, scorer: Scorer) -> list[Scores]:
        if self.rows is None:
            return [scorer.prefill(window) for window in self.windows]
        starts = range(0, len(self.windows), self.rows)
        return [scores for at in starts for scores in scorer.decode(self.windows[at : at + self.rows])]


class Verdict(msgspec.Struct, frozen=True):
    """One case at one work."""

    case: str
    work: str
    agreement: Agreement
    notes: list[str]


def make_works(tokens: Sequence[int], lengths: Sequence[int], rows: Sequence[int]) -> list[Work]:
    """Prompts of each length over the whole text, then decoding at each batch size over a part of it."""
    works = [Work(f"prefill of {length}", windows(tokens, length)) for length in lengths]
    whole = [window for window in windows(tokens, DECODE_WINDOW) if len(window) == DECODE_WINDOW]
    for count in rows:
        taken = whole[: max(count, LEAST_DECODED // DECODE_WINDOW)]
        works.append(Work(f"decode of {min(count, len(taken))}", taken, count))
    return works


@contextmanager
def make_cases(
    checkpoint: Checkpoint, reference: Reference, served: WorkerConfig, names: Sequence[str]
) -> Iterator[list[Case]]:
    """``served`` as it is, and plain weights in each dtype that ``names`` has: of a GGUF file, those that
    transformers made of it, in a folder that is gone when the block ends."""
    wanted = [name for name in names if name != "served"]
    with tempfile.TemporaryDirectory(prefix="stentor-quality-") as scratch:
        plain = served
        if wanted and checkpoint.format == "gguf":
            reference.save(Path(scratch))
            plain = msgspec.structs.replace(served, model=scratch)
        plain = msgspec.structs.replace(plain, quantization="none")
        yield [Case(name, served if name == "served" else msgspec.structs.replace(plain, dtype=name)) for name in names]


def check(cases: Sequence[Case], works: Sequence[Work], reference: Reference, show: Show) -> list[Verdict]:
    """Scores every window in every case, then compares each with the reference, which computes it once."""
    # works share windows: of each, the reference's distributions are held but once and not for long
    uses: dict[tuple[int, ...], list[tuple[Comparison, Scores]]] = {}
    found: list[tuple[str, str, Comparison, list[str]]] = []
    for case in cases:
        show(f"{case.name}: loading")
        scorer = Scorer(case.config)
        for work in works:
            show(f"{case.name}: {work.name}")
            comparison = Comparison()
            found.append((case.name, work.name, comparison, scorer.notes))
            for window, scores in zip(work.windows, work.score(scorer), strict=True):
                uses.setdefault(tuple(window), []).append((comparison, scores))
        scorer.close()
    for number, (window, pairs) in enumerate(uses.items(), 1):
        show(f"transformers: window {number} of {len(uses)}")
        theirs = reference.logprobs(window)
        for comparison, scores in pairs:
            comparison.add(window, scores, theirs)
    return [Verdict(case, work, comparison.result(), notes) for case, work, comparison, notes in found]
