"""The process that makes a model's inputs of media; see :mod:`.processor_process`."""

import io
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Final

from stentor.engine.processes.freed_memory import resident_bytes

from ...audio.encode import wav_header
from ...sandbox.child import Growth, bound_growth, bounded_child, receive, receive_bytes, send, send_bytes
from ..decoding.decode_audio import SAMPLE_RATE, decode_audio
from ..decoding.decode_image import decode_image
from ..decoding.decode_video import DecodedVideo, VideoFacts, decode_video, rehearse
from ..decoding.decoded import DecodedLimits
from ..refusal import REFUSED, TOO_LARGE, Refusal
from .processor_process import MAX_PAYLOAD, Described, Processed, ProcessorJob, Setup

if TYPE_CHECKING:
    from .model_processor import ModelInputs, ModelProcessor

MAX_GROWTH: Final = 3 << 30
"""Bytes of address space for one job, beyond that of the libraries."""
CPU_SECONDS: Final = 30.0
"""CPU time of one job, enforced by the kernel."""
_LEFT_BEHIND: Final = 512 << 20
"""Bytes by which jobs may let this process grow: a restart takes seconds."""
_NICENESS: Final = 10
"""Whoever waits for a token goes first."""


def main() -> int:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # before numpy and torch start one for each core
    os.environ["HF_HUB_OFFLINE"] = "1"  # missing files are not downloaded
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    with bounded_child("stentor-media") as connection:
        setup = receive(connection, Setup)
        # to transformers, it is not installed: numpy does, in a fifth of the time and of the memory
        sys.modules["torch"] = None  # type: ignore[assignment]
        from .model_processor import ModelProcessor
        from .processor_classes import ProcessorError

        try:
            processor = ModelProcessor(setup.source, setup.defaults)
        except ProcessorError as error:
            send(connection, Described({}, {}, False, 0, str(error)))
            return 0
        _rehearse(processor, setup.limits)
        # not before: imports take seconds of the CPU, and whoever waits for the child would wait for idle time
        os.nice(_NICENESS)
        growth = Growth(_LEFT_BEHIND)
        bound_growth(MAX_GROWTH)
        # nothing more can be opened: the only number that is left is taken; 0 would forbid to wait for the socket
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, 1))
        send(connection, Described(processor.written, processor.missing, processor.by_company, resident_bytes()))
        while True:
            job = receive(connection, ProcessorJob)
            data = bytes(receive_bytes(connection, job.length))
            answer, payload = process(processor, job, data, setup.limits, growth)
            send(connection, answer)
            send_bytes(connection, payload)
            del job, data, answer, payload
    return 0


def _rehearse(processor: "ModelProcessor", limits: DecodedLimits) -> None:
    """Imports all that a job does, while files can still be opened."""
    import numpy as np
    from PIL import Image

    Image.init()  # the readers of all formats
    growth = Growth()
    drawn = io.BytesIO()
    Image.new("RGB", (64, 48)).save(drawn, "PNG")
    for data in (drawn.getvalue(), b"none"):
        for detail in ("auto", "low"):
            process(processor, ProcessorJob("image", len(data), {"detail": detail}), data, limits, growth)
    if "video" in processor.written:
        rehearse()
        seen = DecodedVideo(np.zeros((2, 48, 64, 3), np.uint8), [0, 1], VideoFacts(2, 1.0, 64, 48))
        processor.video(seen)
    if "audio" in processor.written:
        sound = wav_header(SAMPLE_RATE, 2 * SAMPLE_RATE) + bytes(2 * SAMPLE_RATE)
        process(processor, ProcessorJob("audio", len(sound), {}), sound, limits, growth)


def process(
    processor: "ModelProcessor", job: ProcessorJob, data: bytes, limits: DecodedLimits, growth: Growth
) -> tuple[Processed, bytes]:
    """The answer to one job, with the payload."""
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        inputs = _inputs(processor, job, data, limits)
        if len(inputs.payload) > MAX_PAYLOAD:
            has = f"what the model is given of it has {len(inputs.payload)} bytes"
            raise Refusal(f"{has}; this server takes at most {MAX_PAYLOAD}: send it smaller", TOO_LARGE)
        answer = Processed(len(inputs.payload), inputs.replacement, inputs.grid, inputs.interval, growth.too_much)
        return answer, inputs.payload
    except Refusal as refusal:
        return Processed(why=str(refusal), code=refusal.code, worn=growth.too_much), b""
    except MemoryError:
        return Processed(why="it needs too much memory to decode", code=REFUSED, worn=True), b""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _inputs(processor: "ModelProcessor", job: ProcessorJob, data: bytes, limits: DecodedLimits) -> "ModelInputs":
    if job.modality not in processor.written:
        raise Refusal(processor.missing.get(job.modality, f"the model takes no {job.modality}"))
    match job.modality:
        case "image":
            picture = decode_image(data, limits, processor.opaque)
            return processor.image(picture, job.options, alone=job.alone)
        case "video":
            return processor.video(decode_video(data, limits, processor.choose_frames(job.options)), job.options)
        case "audio":
            return processor.audio(decode_audio(data, limits))


if __name__ == "__main__":
    sys.exit(main())
