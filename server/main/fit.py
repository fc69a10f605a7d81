"""Said before anything is loaded: weights that are larger than the memory they would go to."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.config import EngineConfig, WorkerConfig

from ..config.model_registry import OPTIONS_OF, ModelRole
from ..http.listening import StartError
from ..options.environment import torch_build

_WEIGHT_FILES: Final = ("*.safetensors", "*.gguf", "model.bin", "pytorch_model*.bin")
_PLAIN_BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_FOUR_BITS: Final = 4.5 / 8
"""Bytes a weight in Q4_0: 32 weights share a scale of 16 bits."""
_GIB: Final = 1 << 30
_SMALL: Final = _GIB
"""Smaller models fit on any machine."""
_DRIVER: Final = Path("/proc/driver/nvidia")
_ASK: Final = (
    "from stentor.server.options.environment import gpus\nfor name, size in gpus(): print(name, size, sep='\\t')"
)


Gpus = Sequence[tuple[str, int]]
"""Name and bytes of memory of each that models run on; none where they run on the CPU."""


def check_fit(engines: Mapping[ModelRole, EngineConfig], find_gpus: Callable[[], Gpus], host: int) -> None:
    """``find_gpus`` is called once, for a model that is large enough to ask. ``host``: bytes of memory of this machine
    or container. Weights that are quantised while they are loaded are not judged.

    Raises :class:`StartError` where a model's weights as stored, beside those of the models before it, are larger.
    """
    gpus: Gpus | None = None
    taken = 0
    for role, config in engines.items():
        worker = config.worker
        if worker.load_format == "dummy" or worker.quantization != "none":
            continue
        size = sum(file.stat().st_size for file in _weight_files(Path(worker.model)))
        if size + taken < _SMALL:
            taken += size
            continue
        if gpus is None:
            gpus = find_gpus()
        place, room = _place(worker, gpus, host)
        if size + taken > room:  # some folders hold them twice
            stored = _stored_bytes(worker)
            size = sum(stored.values())
            if size + taken > room:
                raise StartError(_refusal(role, worker, stored, place, room, taken, len(gpus)))
        taken += size


def usable_gpus() -> Gpus:
    """GPUs that the installed torch supports. Another process asks the driver, which must not be initialised in this
    one, whose children will use it."""
    build = torch_build()
    if build is None or not build.cuda or not _DRIVER.exists():
        return ()
    asked = subprocess.run([sys.executable, "-P", "-c", _ASK], capture_output=True, text=True, check=False)
    rows = (line.rsplit("\t", 1) for line in asked.stdout.splitlines() if "\t" in line)
    return [(name, int(size)) for name, size in rows]


def _place(worker: WorkerConfig, gpus: Gpus, host: int) -> tuple[str, int]:
    """Its device, in words, and the bytes of memory there."""
    if worker.device == "cpu" or not gpus:
        engines, where = worker.data_parallel_size, "this machine or container"
        return (where, host) if engines == 1 else (f"each of {engines} engines on {where}", host // engines)
    used = gpus[: worker.group_size]
    room = int(min(size for _, size in used) * len(used) * worker.gpu_memory_fraction)
    names = " and ".join(sorted({name for name, _ in used}))
    return f"{worker.gpu_memory_fraction:.0%} of {len(used)} x {names}" if len(used) > 1 else names, room


def _weight_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for pattern in _WEIGHT_FILES:
        yield from path.glob(pattern)


def _stored_bytes(worker: WorkerConfig) -> Mapping[str, int]:
    """By type. Empty for a model that cannot be opened; the engine reports that better."""
    from stentor.engine.loading.checkpoint import open_checkpoint  # late: few models are as large
    from stentor.engine.loading.kind import kind_of
    from stentor.engine.loading.pooling_checkpoint import open_pooling

    path = Path(worker.model)
    with suppress(CheckpointError, OSError):
        pools = worker.is_pooling and kind_of(path) == "embedding"
        opened = open_pooling(path) if pools else open_checkpoint(path, worker.load_format, worker.model_impl)
        return opened.stored_bytes
    return {}


def _refusal(
    role: ModelRole, worker: WorkerConfig, stored: Mapping[str, int], place: str, room: int, taken: int, gpus: int
) -> str:
    size = sum(stored.values())
    beside = f", of which other models take {_size(taken)}" if taken else ""
    said = f"{OPTIONS_OF[role]}: the weights of {worker.model} are {_size(size)}, and {place} has {_size(room)}"
    plain = sum(nbytes // _PLAIN_BYTES[kind] for kind, nbytes in stored.items() if kind in _PLAIN_BYTES)
    smaller = int(plain * _FOUR_BITS) + sum(nbytes for kind, nbytes in stored.items() if kind not in _PLAIN_BYTES)
    ways = []
    if smaller < room - taken:
        ways.append(f"serve it in 4 bits a weight (a GGUF file of type Q4_0), some {_size(smaller)}")
    if worker.device != "cpu" and worker.group_size < gpus:
        ways.append(f"spread it over GPUs (--tensor-parallel-size, {gpus} are here)")
    ways.append("choose a smaller model")
    return f"{said}{beside}. What would fit: {', or '.join(ways)}; `stentor env MODEL` says what one takes."


def _size(nbytes: int) -> str:
    return f"{nbytes / _GIB:.1f} GiB"
