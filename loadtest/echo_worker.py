"""A worker that computes nothing, so that what is left is our own cost: one token a row, a step every few ms.

Answered at once, steps outrun the server and many tokens share one frame; paced, each token is a frame of its own,
as with a real model.
"""

import sys
import time
from collections.abc import Callable

from stentor.engine.channel import Endpoint, PeerDied
from stentor.engine.processes.process import become_child
from stentor.engine.worker.limits import limits_of, with_limits
from stentor.protocols.ipc.actors import Shutdown, StartWorker, WorkerReady
from stentor.protocols.ipc.codec import decode_worker, encoder
from stentor.protocols.ipc.steps import StepPlan, StepResult

_BLOCKS = 65_536
_MAX_MODEL_LEN = 8_192
_TOKEN = 260
"""Some ordinary word piece of the demo model."""
STEP_SECONDS = 0.02


def main(step_seconds: float = STEP_SECONDS) -> int:
    return serve(_echo, step_seconds)


def serve(answer: Callable[[StepPlan], StepResult], step_seconds: float) -> int:
    """Answers every plan after so many seconds; returns the exit code of the process."""
    inherited = become_child("stentor-worker")
    engine = Endpoint.attach(inherited.fds, inherited.parent_pid)
    try:
        while True:
            for frame in engine.receive_blocking(None):
                match decode_worker.decode(frame):
                    case StartWorker(config=config):
                        limits = limits_of(with_limits(config, "cpu"))
                        engine.send_blocking(encoder.encode(WorkerReady(_BLOCKS, _MAX_MODEL_LEN, [], [], limits)))
                    case StepPlan() as plan:
                        time.sleep(step_seconds)
                        engine.send_blocking(encoder.encode(answer(plan)))
                    case Shutdown():
                        return 0
    except PeerDied:
        return 0


def _echo(plan: StepPlan) -> StepResult:
    tokens = [_TOKEN for row in plan.rows if row.sample]
    return StepResult(plan.epoch, plan.step, tokens, None, [], 0.0)


if __name__ == "__main__":
    sys.exit(main())
