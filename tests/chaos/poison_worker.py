"""The real worker, but for one thing: a step with a row whose prompt holds :data:`MAGIC` kills it.

Only a server that was started through :mod:`.poison_server` has it.
"""

import argparse
import os
import signal
import sys
from typing import Final

from stentor.engine.channel import Endpoint, PeerDied
from stentor.engine.processes.process import become_child
from stentor.protocols.ipc.steps import Masks, StepPlan

MAGIC: Final = [7001, 7002, 7003, 7004]


def preload() -> None:
    """Imports what a worker needs, before it is forked."""
    from stentor.engine.worker import service  # noqa: F401  # late, as in main


def has_magic(tokens: list[int]) -> bool:
    return any(tokens[at : at + len(MAGIC)] == MAGIC for at in range(len(tokens) - len(MAGIC) + 1))


class Fault:
    """Knows which slots hold a poisonous row."""

    def __init__(self) -> None:
        self._slots: set[int] = set()

    def strikes(self, plan: StepPlan) -> bool:
        """Whether this step is one that kills."""
        self._slots -= {*plan.freed, *(row.slot for row in plan.new)}
        self._slots |= {row.slot for row in plan.new if has_magic(row.tokens[: row.prompt_len])}
        return any(row.slot in self._slots for row in plan.rows)


def main() -> int:
    inherited = become_child("stentor-worker")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--weights-fd", type=int)
    parser.add_argument("--arena-fd", type=int)
    given = parser.parse_args(inherited.arguments)
    from stentor.engine.worker.service import Worker  # late: torch takes seconds

    class Poisonable(Worker):
        _fault = Fault()

        def _step(self, plan: StepPlan | Masks) -> bool:
            if isinstance(plan, StepPlan) and self._fault.strikes(plan):
                os.kill(os.getpid(), signal.SIGKILL)
            return super()._step(plan)

    try:
        engine = Endpoint.attach(inherited.fds, inherited.parent_pid)
        return Poisonable(engine, given.weights_fd, arena_fd=given.arena_fd).run()
    except PeerDied:
        return 0


if __name__ == "__main__":
    sys.exit(main())
