"""A trace of the worker's steps, for chrome://tracing or Perfetto."""

import logging
import time
from pathlib import Path

import torch

from stentor.protocols.ipc.config import WorkerConfig

from ..processes.exception_groups import one_line

logger = logging.getLogger(__name__)


class StepTrace:
    """One trace at a time, in memory until it is written. To be called between steps, in the thread that runs them."""

    def __init__(self, config: WorkerConfig) -> None:
        self._folder = Path(config.profiler_folder)
        self._name = f"{config.name or 'worker'}-rank{config.rank}".replace("/", "_")
        self._running: torch.profiler.profile | None = None

    def begin(self) -> str:
        """Begin a trace; returns why that is not possible, or "". A trace that is not written is dropped."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        try:
            running = torch.profiler.profile(activities=activities, acc_events=True)
            running.start()
        except RuntimeError as error:
            return f"torch cannot trace: {one_line(error)}"
        self._running = running
        return ""

    def write(self) -> str:
        """End the trace and write it; returns why that failed, or ""."""
        running, self._running = self._running, None
        if running is None:
            return "no profile is being taken"
        file = self._folder / f"{self._name}-{time.time_ns()}.pt.trace.json.gz"
        try:
            running.stop()
            running.export_chrome_trace(str(file))
        except (OSError, RuntimeError) as error:
            return f"the profile cannot be written: {one_line(error)}"
        logger.info("a profile of the steps was written to %s", file)
        return ""
