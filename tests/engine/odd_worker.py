"""A worker process that behaves as ``WorkerConfig.model`` says; the token at position p is p.

``ready`` answers every step at once. ``wordy`` adds twenty alternatives to each token. ``silent`` never gets ready,
``refuses`` says why it cannot start, ``vanishes`` ends in start-up, ``babbles`` sends what is no message, ``wrong``
answers another step than it was given.
"""

import sys
import time
from pathlib import Path

from stentor.engine.channel import Endpoint, PeerDied
from stentor.engine.processes.process import become_child
from stentor.engine.worker.limits import limits_of
from stentor.protocols.ipc.actors import Failed, Shutdown, StartWorker, WorkerReady
from stentor.protocols.ipc.codec import decode_worker, encoder
from stentor.protocols.ipc.config import StepLimits
from stentor.protocols.ipc.steps import StepPlan, StepResult, TokenLogprobs

BLOCKS = 2048
MAX_MODEL_LEN = 4096
REFUSAL = "there is no such model; name another"


def answer(plan: StepPlan, *, wordy: bool = False) -> StepResult:
    """What a worker makes of a plan."""
    tokens = [row.start + row.count for row in plan.rows if row.sample]
    tops = [(token, -float(token)) for token in range(20)]
    logprobs: list[TokenLogprobs | None] | None = [TokenLogprobs(token, -1.0, 1, tops) for token in tokens]
    return StepResult(plan.epoch, plan.step, tokens, logprobs if wordy else None, [], 0.0)


def _start(engine: Endpoint, manner: str, limits: StepLimits) -> int | None:
    match manner:
        case "silent":
            time.sleep(3600)
        case "refuses":
            engine.send_blocking(encoder.encode(Failed(REFUSAL)))
            return 1
        case "vanishes":
            return 3
        case "babbles":
            engine.send_blocking(b"\xc1 no message")
        case _:
            engine.send_blocking(encoder.encode(WorkerReady(BLOCKS, MAX_MODEL_LEN, [], [], limits)))
    return None


def main() -> int:
    inherited = become_child("odd-worker")
    engine = Endpoint.attach(inherited.fds, inherited.parent_pid)
    manner = ""
    try:
        while True:
            for frame in engine.receive_blocking(None):
                match decode_worker.decode(frame):
                    case StartWorker(config=config):
                        manner = Path(config.model).name
                        if (code := _start(engine, manner, limits_of(config))) is not None:
                            return code
                    case StepPlan() as plan:
                        result = answer(plan, wordy=manner == "wordy")
                        if manner == "wrong":
                            result = StepResult(plan.epoch, plan.step + 7, result.tokens, None, [], 0.0)
                        engine.send_blocking(encoder.encode(result))
                    case Shutdown():
                        return 0
    except PeerDied:
        return 0


if __name__ == "__main__":
    sys.exit(main())
