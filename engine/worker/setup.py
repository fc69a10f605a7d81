"""From a worker's configuration to a model that has completed a real step."""

import torch

from stentor.protocols.ipc.config import WorkerConfig

from ..sharing.lease import Member
from .cuda_device import CudaDevice
from .errors import SetupError
from .setup_cpu import set_up_cpu
from .setup_device import set_up_device
from .setup_parts import ProgressCallback, Setup

_WAITING = "waiting for the device"


def set_up(
    config: WorkerConfig, progress: ProgressCallback, weights_fd: int | None = None, member: Member | None = None
) -> Setup:
    """Loads the model, sizes the KV cache and completes a real step.

    ``weights_fd``: the memory file where weights prepared for a CPU are kept; None keeps none. ``member`` is this
    worker among those of other models on its device; None: it is alone there. On a GPU they take memory one after the
    other.

    Raises :class:`SetupError` and the loader's errors, each with one clear line.
    """
    place = choose_device(config.device)
    if place.type != "cuda":
        return set_up_cpu(config, progress, weights_fd)
    if member is None:
        return set_up_device(config, progress, CudaDevice(place))
    waited = []

    def wait() -> None:
        waited.append(True)
        progress(_WAITING, 0, 1)

    with member.setting_up(wait):
        if waited:
            progress(_WAITING, 1, 1)
        device = CudaDevice(place, member.memory_of_others)
        setup = set_up_device(config, progress, device)
        now = device.memory()
        member.note_memory(now.total - now.free)
    return setup


def choose_device(wanted: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise SetupError("--device cuda: torch sees no CUDA device here; use --device cpu, or check the driver")
    return torch.device("cuda" if has_cuda and wanted != "cpu" else "cpu")
