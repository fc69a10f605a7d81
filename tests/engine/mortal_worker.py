"""A worker process that dies. Its model is :mod:`.fake_worker`'s, which also checks every plan.

What a prompt holds kills the worker whenever a row of that prompt is in a step: :data:`ENDS` ends the process,
:data:`FAILS` has it say that it cannot go on, :data:`HANGS` stops it, :data:`ENDS_LATER` ends it in each step after the
one that draws the first token of a life. ``WorkerConfig.model`` is a folder; its file ``starts`` says how each start
goes, a word a line, the last for all that follow: ``ready``, ``vanishes``, ``silent``, ``refuses``, ``smaller`` (ready,
with a quarter of the blocks), ``waits`` (ready once there is a file ``go``), ``deadly`` (ready, and ends in its first
step), ``brief`` or ``stops`` (ready, and ends or is stopped in its eighth). Of a group the last dies of a prompt, and
the others wait for it then.
"""

import os
import signal
import sys
import time
from pathlib import Path

from stentor.engine.channel import Endpoint, PeerDied
from stentor.engine.processes.process import become_child
from stentor.engine.worker.limits import limits_of
from stentor.protocols.ipc.actors import Failed, Shutdown, StartWorker, WorkerReady
from stentor.protocols.ipc.codec import decode_worker, encoder
from stentor.protocols.ipc.config import EngineConfig, RecoveryConfig, WorkerConfig
from stentor.protocols.ipc.steps import Masks, StepPlan, StepResult
from stentor.tests.engine.fake_worker import FakeWorker

ENDS, FAILS, HANGS, ENDS_LATER = 90, 91, 92, 93
BLOCKS = 64
MAX_MODEL_LEN = 128
STATUS = 7
_LAST_STEPS = {"deadly": 1, "brief": 8, "stops": 8}
_STEP_SECONDS = 0.002


def mortal_config(folder: Path, *starts: str, recovery: RecoveryConfig | None = None, workers: int = 1) -> EngineConfig:
    """An engine over such workers, in groups of so many."""
    (folder / "starts").write_text("\n".join(starts or ("ready",)))
    worker = WorkerConfig(
        str(folder),
        max_num_seqs=8,
        max_num_batched_tokens=32,
        max_mixed_prefill_tokens=32,
        max_prefill_chunk=32,
        block_size=4,
        tensor_parallel_size=workers,
    )
    return EngineConfig(
        worker, recovery=recovery or RecoveryConfig(), worker_module="stentor.tests.engine.mortal_worker"
    )


def lives(folder: Path) -> int:
    """How many workers have been started, or groups of them."""
    return len((folder / "lives").read_text()) if (folder / "lives").exists() else 0


def latest(folder: Path) -> int:
    """The pid of the worker that was started last."""
    return int((folder / "pid").read_text())


def _manner(folder: Path) -> str:
    (folder / "pid").write_text(str(os.getpid()))
    with (folder / "lives").open("a") as file:
        file.write("x")
    starts = (folder / "starts").read_text().split()
    return starts[min(lives(folder), len(starts)) - 1]


class _Mortal:
    def __init__(self, engine: Endpoint) -> None:
        self._engine = engine
        self._manner = ""
        self._first = self._last = True
        """Of its group."""
        self._drawn: set[int] = set()
        """Slots whose rows have drawn a token."""
        self._steps = 0

    def run(self) -> int:
        while True:
            for frame in self._engine.receive_blocking(None):
                match decode_worker.decode(frame):
                    case StartWorker(config=config):
                        if (code := self._start(config)) is not None:
                            return code
                    case StepPlan() as plan:
                        self._step(plan)
                    case Masks() as masks:
                        self._mask(masks)
                    case Shutdown():
                        return 0

    def _start(self, config: WorkerConfig) -> int | None:
        self._first, self._last = config.rank == 0, config.rank == config.tensor_parallel_size - 1
        self._manner = _manner(Path(config.model)) if self._first else "ready"
        match self._manner:
            case "vanishes":
                return STATUS
            case "refuses":
                self._send(Failed("there is no such model"))
                return 1
            case "silent":
                time.sleep(3600)
            case "waits":
                while not Path(config.model, "go").exists():
                    time.sleep(0.005)
        blocks = BLOCKS // 4 if self._manner == "smaller" else BLOCKS
        limits = limits_of(config)
        self._model = FakeWorker(
            num_blocks=blocks,
            block_size=limits.block_size,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
        )
        self._send(WorkerReady(blocks, MAX_MODEL_LEN, [], [], limits))
        return None

    def _step(self, plan: StepPlan) -> None:
        time.sleep(_STEP_SECONDS)
        self._answer(self._model.run(plan), plan)

    def _mask(self, masks: Masks) -> None:
        plan = self._model.held
        assert plan is not None
        self._answer(self._model.mask(masks), plan)

    def _answer(self, result: StepResult | None, plan: StepPlan) -> None:
        if result is None:
            return
        prompts = {row.slot: self._model.rows[row.slot].tokens for row in plan.rows}
        self._steps += 1
        if self._steps == _LAST_STEPS.get(self._manner):
            if self._manner != "stops":
                os._exit(STATUS)
            os.kill(os.getpid(), signal.SIGSTOP)
        if not self._last and any(not {ENDS, HANGS, FAILS}.isdisjoint(tokens) for tokens in prompts.values()):
            time.sleep(60)
        if any(ENDS in tokens for tokens in prompts.values()):
            os._exit(STATUS)
        if any(HANGS in tokens for tokens in prompts.values()):
            os.kill(os.getpid(), signal.SIGSTOP)
        if any(FAILS in tokens for tokens in prompts.values()):
            self._send(Failed("the worker failed in a step"))
            os._exit(STATUS)
        self._drawn -= {row.slot for row in plan.new} | {row.slot for row in plan.forks}
        if any(ENDS_LATER in tokens and slot in self._drawn for slot, tokens in prompts.items()):
            os._exit(STATUS)
        self._drawn |= {row.slot for row in plan.rows if row.sample}
        if self._first:
            self._send(result)

    def _send(self, message: object) -> None:
        self._engine.send_blocking(encoder.encode(message))


def main() -> int:
    inherited = become_child("mortal-worker")
    try:
        return _Mortal(Endpoint.attach(inherited.fds, inherited.parent_pid)).run()
    except PeerDied:
        return 0


if __name__ == "__main__":
    sys.exit(main())
