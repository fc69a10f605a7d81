"""Voices as ONNX graphs: sessions that leave other processes their cores, and runs that can be stopped."""

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from .backend import CannotSpeak, Stop, Stopped

RUNS: Final = 4
"""Most runs of full length for one sentence. Only a script that the voice cannot read needs more, because it is spelled
letter by letter; the rest is left out, since others wait."""
PEAK: Final = 32767.0
P = TypeVar("P", str, list[str])


def open_session(path: str, threads: int) -> Any:
    """An ``onnxruntime.InferenceSession`` on the CPU. Raises :class:`CannotSpeak`."""
    try:
        import onnxruntime
    except ImportError as error:
        raise CannotSpeak(f"onnxruntime cannot be imported ({error}): install it again") from error
    onnxruntime.set_default_logger_severity(3)  # errors only: it does not use our log
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # spinning threads would take the cores of other processes
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library raises errors of many types for broken files
        raise CannotSpeak(f"{path} cannot be loaded: {' '.join(str(error).split())}") from error


def run(session: Any, fed: dict[str, Any], stop: Stop) -> list[Any]:
    """The outputs of one run, which ``stop`` ends. Raises :class:`Stopped` and :class:`CannotSpeak`."""
    import onnxruntime

    options = onnxruntime.RunOptions()

    def terminate() -> None:
        options.terminate = True

    if stop.is_set:
        raise Stopped
    stop.then(terminate)
    try:
        outputs: list[Any] = session.run(None, fed, options)
    except Exception as error:
        if stop.is_set:
            raise Stopped from None
        raise CannotSpeak("the voice failed on this text") from error
    return outputs


def runs(phonemes: P, most: int) -> Iterator[P]:
    """Split phonemes into parts of at most ``most``, between words if possible in a part's second half."""
    while len(phonemes) > most:
        end = next((place for place in range(most, most // 2, -1) if phonemes[place - 1] == " "), most)
        yield phonemes[:end]
        phonemes = phonemes[end:]
    if phonemes:
        yield phonemes


def pcm_of(samples: Any) -> bytes:
    """A numpy array of floats as 16-bit PCM; beyond [-1, 1] it is clipped."""
    import numpy as np

    return bytes((np.clip(samples, -1.0, 1.0) * PEAK).astype("<i2").tobytes())
