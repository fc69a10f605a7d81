"""What the rows of a step may draw, once the tokens before it are known."""

from stentor.protocols.ipc.actors import Finished
from stentor.protocols.ipc.steps import Masks

from ..grammar.constraint import Complete, ConstraintBroken
from ..grammar.token_sets import MaskWriter
from ..request import SequenceState
from .output import Output
from .step import InFlightStep

_CROWDED = "too many requests with grammars run at once; try again, or lower --max-num-seqs"


def write_masks(flight: InFlightStep, epoch: int, output: Output) -> tuple[Masks, list[Finished]]:
    """The masks of the oldest step in flight, and the ends of sequences that may draw nothing.

    Rows whose sequence has ended are left out: what they draw is dropped.
    """
    writer = MaskWriter()
    finished: list[Finished] = []
    masked = frozenset(flight.masked)
    for row, (sequence, _, _, _) in zip(flight.rows, flight.owners, strict=True):
        # one that has lost its row still gets the token that is in flight
        if row.slot not in masked or sequence.constraint is None or sequence.state is SequenceState.FINISHED:
            continue
        try:
            allowed = sequence.constraint.allowed()
        except Complete:
            finished.append(output.finish(sequence, "stop"))
        except ConstraintBroken as broken:
            finished.append(output.finish(sequence, "error", None, str(broken), broken.fault))
        else:
            if allowed is None or writer.add(row.slot, allowed):
                continue
            finished.append(output.finish(sequence, "error", None, _CROWDED))
        output.replace_leader(sequence.request)
    return writer.masks(epoch, flight.step), finished
