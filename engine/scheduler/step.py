"""One step while it is put together, and what is remembered of it until its result comes."""

from typing import NamedTuple

from stentor.protocols.steps import Encoding, NewRow, RowInput, RowStep, StepResult

from ..request import Choice

Owner = tuple[Choice, int, int, bool]
"""Whose row it was at plan time: (choice, incarnation, end of its positions, whether it draws a token)."""


class Flight(NamedTuple):
    """A planned step whose result has not come; ``owners`` follows ``rows``.

    Results are matched by owner, never by slot: by the time they come, the slot may be another's.
    """

    step: int
    rows: list[RowStep]
    owners: list[Owner]
    sampled: int
    masked: list[int]
    """Slots of the rows that may be restricted; where there are any, the worker waits for masks before it draws."""
    new: list[NewRow]

    def check(self, result: StepResult) -> None:
        """Raise ValueError unless the result has the shape that this step must have."""
        for what, values in (("tokens", result.tokens), ("logprobs", result.logprobs)):
            if values is not None and len(values) != self.sampled:
                raise ValueError(
                    f"the worker sent {len(values)} {what} for step {self.step}, which draws {self.sampled}"
                )
        if result.prompt_logprobs or result.heard or result.pooled:
            owners = self.by_slot()
            for piece in result.prompt_logprobs:
                owner = owners.get(piece.slot)
                if owner is None:
                    raise ValueError(f"the worker sent prompt logprobs of slot {piece.slot}, not in step {self.step}")
                end = piece.start + len(piece.positions)
                prompt_len = owner[0].request.prompt_len
                if not 0 < piece.start <= end <= prompt_len:
                    raise ValueError(
                        f"the worker sent prompt logprobs of tokens {piece.start} to {end} in step {self.step}; "
                        f"slot {piece.slot} has such for 1 to {prompt_len}"
                    )
            for row in result.heard:
                owner = owners.get(row.slot)
                if owner is None or owner[0].request.audio is None:
                    raise ValueError(
                        f"the worker says what slot {row.slot} has heard in step {self.step}, where it hears nothing"
                    )

            for made in result.pooled:
                owner = owners.get(made.slot)
                if owner is None or owner[0].request.pooling is None:
                    raise ValueError(
                        f"the worker made a vector of slot {made.slot} in step {self.step}, where nobody asked for one"
                    )

    def by_slot(self) -> dict[int, Owner]:
        return {row.slot: owner for row, owner in zip(self.rows, self.owners, strict=True)}


class StepDraft:
    """The step being planned. ``budget`` is the tokens that may still be added, ``chunk`` the most for one row.

    ``streams`` says that rows may have to wait for what they hear; ``waiting`` counts those that have nothing to
    compute now, and may all have something in the next step.
    """

    __slots__ = (
        "_counted",
        "_room",
        "budget",
        "chunk",
        "encodings",
        "inputs",
        "masked",
        "max_encodings",
        "new",
        "owners",
        "rows",
        "sampled",
        "streams",
        "waiting",
    )

    def __init__(self, budget: int, chunk: int, *, streams: bool = False) -> None:
        self.budget = self._room = budget
        self._counted = 0
        self.chunk = chunk
        self.streams = streams
        self.max_encodings = 0
        self.encodings: list[Encoding] = []
        self.inputs: list[RowInput] = []
        self.new: list[NewRow] = []
        self.rows: list[RowStep] = []
        self.owners: list[Owner] = []
        self.sampled = self.waiting = 0
        self.masked: list[int] = []

    @property
    def room(self) -> int:
        """What is left of the largest step there may be: a row that enters whole may go beyond the budget."""
        # rows that decode need not know: counting happens when somebody asks
        for row in self.rows[self._counted :]:
            self._room -= row.count
        self._counted = len(self.rows)
        return self._room

    def feed(self) -> None:
        """Hands the rows of the step what has come of their input."""
        for choice, _, _, _ in self.owners:
            if (given := choice.feed()) is not None:
                self.inputs.append(given)

    def add(self, choice: Choice, count: int, new_blocks: list[int]) -> None:
        """Plan the next ``count`` positions of a running choice, and a token where they reach its end; mutates it."""
        start = choice.computed_len
        end = start + count
        choice.computed_len = end
        sample = False
        if end == choice.length:
            if choice.samples:
                sample = True
                self.sampled += 1
                if choice.rule is not None and choice.rule.restricts(choice.pending):
                    self.masked.append(choice.slot)
                choice.pending += 1
                choice.length = end + 1
                # Its last token by length needs no step of its own: nothing is drawn after it.
                choice.exhausted = end + 1 == choice.limit_len
            else:
                choice.exhausted = True
        self.budget -= count
        self.rows.append(RowStep(choice.slot, start, count, new_blocks, sample))
        self.owners.append((choice, choice.incarnation, end, sample))
