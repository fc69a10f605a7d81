"""Which request each row of a worker belongs to: for its logs, and nothing else."""

import logging
from collections.abc import Mapping
from typing import Final

from stentor.protocols.ipc.steps import StepPlan

logger = logging.getLogger(__name__)

Names = Mapping[int, str]
"""By slot; never changed once handed out, for the step that it belongs to may fail much later."""
NAMED: Final = 16
"""Requests that one log line names at most."""


class RowNames:
    """The names as of the last plan. A step that brings no row and frees none costs nothing."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def after(self, plan: StepPlan) -> Names:
        """Takes the next plan; the names of the rows that it finds."""
        if not plan.new and not plan.freed:
            return self._names
        names = self._names.copy()
        for slot in plan.freed:
            names.pop(slot, None)
        for row in plan.new:
            names[row.slot] = row.request
        if logger.isEnabledFor(logging.DEBUG):
            for row in plan.new:
                logger.debug(
                    "step %d: slot %d takes a row of %d tokens",
                    plan.step,
                    row.slot,
                    len(row.tokens),
                    extra={"request_id": row.request},
                )
        self._names = names
        return names


def names_in(plan: StepPlan, names: Names) -> str:
    """The requests that a step has rows of, for a log line."""
    found = sorted({names.get(row.slot, "") or "an unnamed request" for row in plan.rows})
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return (", ".join(found[:NAMED]) or "nobody") + more
