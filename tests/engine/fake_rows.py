"""The rows of a worker without a model, and their recurrent states."""

from dataclasses import dataclass, field

from stentor.engine.client.media import Media
from stentor.protocols.ipc.audio import PromptProbe
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import RowSpan, RowStep


@dataclass
class Row:
    tokens: list[int]
    prompt_len: int
    params: SamplingParams
    seed: int
    tables: list[list[int]]
    """Of each group of layers."""
    masked: bool = False
    spans: list[RowSpan] = field(default_factory=list)
    media: list[Media] = field(default_factory=list)
    """What stands in its prompt, whether it is computed here or was found."""
    heard: bytes = b""
    """Of what is streamed."""
    ended: bool = False
    probe: PromptProbe | None = None
    """The alignment or probability that its prompt returns."""
    pooling: Pooling | None = None
    """What is to be made of its prompt, until it has been made."""
    computed: int | None = None
    """Positions with KV; None until the row's first step says where it starts."""
    accepted: int = 0
    """Drafts of its latest step, which the engine may not know when it plans the next."""
    state: int = -1
    """The slot of its recurrent state."""
    drafts: list[int] = field(default_factory=list)
    """What the engine has been told that it will propose, where it may be masked."""


class FakeStates:
    """By slot, the tokens that a state has seen."""

    def __init__(self, capacity: int, host: int) -> None:
        """``host``: slots in the host's memory, which have negative numbers."""
        self._capacity, self._host = capacity, host
        self._seen: dict[int, list[int]] = {}

    def copy(self, copies: list[tuple[int, int]]) -> None:
        for source, target in copies:
            assert -self._host <= min(source, target) < 0 <= max(source, target) < self._capacity
            self._seen[target] = self._seen[source]

    def advance(self, steps: list[tuple[RowStep, Row]]) -> None:
        """Each row's state has seen exactly what is before its tokens, and nobody writes what another reads."""
        read: dict[int, tuple[int, Row]] = {}
        written: dict[int, list[int]] = {}
        for step, row in steps:
            if not self._capacity:
                assert (row.state, step.state) == (-1, -1), f"slot {step.slot} has a state that the model does not keep"
                continue
            before = [] if row.state < 0 else self._seen[row.state]
            assert before == row.tokens[: step.start], f"slot {step.slot} goes on from a state that is not its own"
            if row.state >= 0:
                read[row.state] = step.slot, row
            row.state = row.state if step.state < 0 else step.state
            assert 0 <= row.state < self._capacity, f"slot {step.slot} has nowhere to write its state"
            assert row.state not in written, f"two rows write state {row.state}"
            written[row.state] = row.tokens[: step.start + step.count]
        for slot in written.keys() & read.keys():
            owner, row = read[slot]
            assert row.state == slot, f"state {slot} is read by slot {owner} and written by another"
        self._seen.update(written)

    def draw(self, row: Row) -> None:
        """The row's state has also seen the drafts that were accepted."""
        if self._capacity:
            self._seen[row.state] = row.tokens[: row.computed]
