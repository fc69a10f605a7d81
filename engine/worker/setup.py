"""From a worker's configuration to a model that has completed a real step."""

import torch

from stentor.protocols.config import WorkerConfig

from .cuda_device import CudaDevice
from .errors import SetupError
from .setup_cpu import set_up_cpu
from .setup_device import set_up_device
from .setup_parts import ProgressCallback, Setup


def set_up(config: WorkerConfig, progress: ProgressCallback, weights_fd: int | None = None) -> Setup:
    """Loads the model, sizes the KV cache and completes a real step.

    ``weights_fd``: the memory file where weights prepared for a CPU are kept; None keeps none.

    Raises :class:`SetupError` and the loader's errors, each with one clear line.
    """
    place = choose_device(config.device)
    if place.type == "cuda":
        return set_up_device(config, progress, CudaDevice(place))
    return set_up_cpu(config, progress, weights_fd)


def choose_device(wanted: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise SetupError("--device cuda: torch sees no CUDA device here; use --device cpu, or check the driver")
    return torch.device("cuda" if has_cuda and wanted != "cpu" else "cpu")
