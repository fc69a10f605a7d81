"""What a model is given of media: made once, kept, and refused with the field that holds what is bad."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from safetensors.numpy import load

from stentor.loadtest.processes import alive
from stentor.protocols.common.errors import BadRequest
from stentor.server.common.errors import Overloaded
from stentor.server.config.limits import ProcessorLimits
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.helpers import MediaUnavailable
from stentor.server.media.metrics import MediaMetrics
from stentor.server.media.processor import MediaProcessor, Wanted
from stentor.server.media.processors.model_processor import ModelProcessor
from stentor.tests.server.media.pictures import picture, png
from stentor.tests.support.vision_models import qwen2_5_vl

DECODED = DecodedLimits(pixels=1 << 20)
Use = Callable[[MediaProcessor], Awaitable[object]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2_5_vl")
    qwen2_5_vl(folder)
    return folder


@pytest.fixture(scope="module")
def run_shared(folder: Path) -> Iterator[Callable[[Use], None]]:
    """Runs what is done with one processor, which is left with a process: another one takes 2 s of the machine."""

    async def body(use: Use) -> None:
        await use(processor)

    with asyncio.Runner() as runner:
        limits = ProcessorLimits(max_waiting=2, max_waiting_bytes=20_000)
        processor = MediaProcessor(folder, limits, MediaMetrics(CollectorRegistry(), "m"), DECODED)
        yield lambda use: runner.run(body(use))
        processor.close()


@asynccontextmanager
async def processing(folder: Path, **limits: float) -> AsyncIterator[MediaProcessor]:
    metrics = MediaMetrics(CollectorRegistry(), "m")
    processor = MediaProcessor(folder, ProcessorLimits(**limits), metrics, DECODED)  # type: ignore[arg-type]
    try:
        yield processor
    finally:
        processor.close()


def wanted(data: bytes | None, **fields: object) -> Wanted:
    return Wanted("image", data, "messages[0].content[1]", **fields)  # type: ignore[arg-type]


def counts(processor: MediaProcessor) -> tuple[float, float]:
    """Looked up, and found."""
    metrics = processor._metrics
    return metrics.queries._value.get(), metrics.hits._value.get()


def test_a_picture_is_made_once_and_its_refusals_name_the_field(
    folder: Path, run_shared: Callable[[Use], None]
) -> None:
    async def use(processor: MediaProcessor) -> None:
        found = await processor.describe()
        assert found.written == {"image": "<|image_pad|>", "video": "<|video_pad|>"}
        assert found.resident_bytes > 0
        (pid,) = processor.pids
        assert os.getpriority(os.PRIO_PROCESS, pid) == 10, "whoever waits for a token goes first"
        before = counts(processor)
        first = await processor.process(wanted(png(40, 30, seed=1)), "")
        assert first.replacement == "<|image_pad|>" * 20
        assert first.grid == (1, 4, 5)
        assert await processor.process(wanted(png(40, 30, seed=1)), "other") is first
        assert counts(processor) == (before[0] + 2, before[1] + 1)
        assert load(bytes(first.payload)).keys() == {"pixel_values", "image_grid_thw"}
        own = ModelProcessor(folder).image(picture(40, 30, seed=1), {}, alone=True)
        assert first.payload == own.payload, "without torch, it is the same"
        coarse = await processor.process(wanted(png(40, 30, seed=1), options={"max_pixels": 512}), "")
        assert coarse.digest != first.digest
        assert len(coarse.payload) < len(first.payload)
        both = await asyncio.gather(*(processor.process(wanted(png(64, 64)), "") for _ in range(8)))
        assert all(each is both[0] for each in both)
        assert counts(processor) == (before[0] + 11, before[1] + 8)
        for data, why in (
            (b"", "empty"),
            (b"none", "no image that can be read"),
            (png(40, 30)[:200], "no image that can be read"),
            (png(1100, 1000), "1100 x 1000 pixels"),
        ):
            with pytest.raises(BadRequest, match=why) as error:
                await processor.process(wanted(data), "")
            assert error.value.param == "messages[0].content[1]"
            assert error.value.status == 400
        with pytest.raises(BadRequest, match="takes no audio"):
            await processor.process(Wanted("audio", b"RIFF", "input"), "")
        assert processor.pids == [pid], "nothing of it has harmed the process"

    run_shared(use)


def test_a_name_stands_for_media_of_its_owner_alone(run_shared: Callable[[Use], None]) -> None:
    async def use(processor: MediaProcessor) -> None:
        first = await processor.process(wanted(png(40, 30), uuid="cat"), "ann")
        assert await processor.process(wanted(None, uuid="cat"), "ann") is first
        for owner, uuid in (("bob", "cat"), ("ann", "dog")):
            with pytest.raises(BadRequest, match="nothing is kept under this uuid"):
                await processor.process(wanted(None, uuid=uuid), owner)
        other = await processor.process(wanted(png(41, 30), uuid="cat"), "bob")
        assert await processor.process(wanted(None, uuid="cat"), "bob") is other
        assert await processor.process(wanted(None, uuid="cat"), "ann") is first

    run_shared(use)


def test_a_process_that_dies_or_gets_no_time_is_replaced(run_shared: Callable[[Use], None]) -> None:
    async def use(processor: MediaProcessor) -> None:
        await processor.describe()
        (pid,) = processor.pids
        (worker,) = processor._pool._workers
        patience = worker.process._timeout
        os.kill(pid, signal.SIGSTOP)
        worker.process._timeout = 0.2
        with pytest.raises(Overloaded, match="too busy to prepare media"):
            await processor.process(wanted(png(40, 30, seed=3)), "")
        assert not alive(pid)
        worker.process._timeout = patience
        assert (await processor.process(wanted(png(40, 30, seed=3)), "")).replacement
        (pid,) = processor.pids
        os.kill(pid, signal.SIGKILL)  # between two jobs: the next is given to another process
        assert (await processor.process(wanted(png(30, 40, seed=3)), "")).replacement
        assert not alive(pid)

    run_shared(use)


def test_who_waits_for_the_same_picture_makes_it_where_the_first_has_gone(run_shared: Callable[[Use], None]) -> None:
    async def use(processor: MediaProcessor) -> None:
        await processor.describe()
        (pid,) = processor.pids
        os.kill(pid, signal.SIGSTOP)
        first = asyncio.ensure_future(processor.process(wanted(png(40, 30, seed=4)), ""))
        second = asyncio.ensure_future(processor.process(wanted(png(40, 30, seed=4)), ""))
        await asyncio.sleep(0.05)
        first.cancel()
        assert (await second).replacement
        assert first.cancelled()

    run_shared(use)


def test_a_queue_that_is_full_refuses_the_next(run_shared: Callable[[Use], None]) -> None:
    async def use(processor: MediaProcessor) -> None:
        await processor.describe()
        os.kill(processor.pids[0], signal.SIGSTOP)
        running = [asyncio.ensure_future(processor.process(wanted(png(40, 30 + n, seed=2)), "")) for n in range(3)]
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded) as error:
            await processor.process(wanted(png(40, 50)), "")
        assert (error.value.status, error.value.code) == (429, "media_full")
        running[2].cancel()
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):  # one place is free, but there are too many bytes
            await processor.process(wanted(png(100, 100)), "")
        os.kill(processor.pids[0], signal.SIGCONT)
        assert all(made.replacement for made in await asyncio.gather(*running[:2]))

    run_shared(use)


def test_a_model_without_a_processor_is_told_to_the_operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')

    async def use() -> None:
        async with processing(tmp_path) as processor:
            for _ in range(2):
                with pytest.raises(MediaUnavailable):
                    await processor.process(wanted(png(40, 30)), "")

    asyncio.run(use())
    assert caplog.text.count("media cannot be prepared") == 1, "it is tried once"
    assert "names a processor_class, and none is known for 'unheard-of'" in caplog.text


def test_the_process_can_open_nothing(run_shared: Callable[[Use], None]) -> None:
    async def use(processor: MediaProcessor) -> None:
        await processor.process(wanted(png(40, 30)), "")
        (pid,) = processor.pids
        bounds = Path(f"/proc/{pid}/limits").read_text()
        (files,) = (line for line in bounds.splitlines() if line.startswith("Max open files"))
        assert files.split()[3:5] == ["1", "1"]
        (memory,) = (line for line in bounds.splitlines() if line.startswith("Max address space"))
        assert "unlimited" not in memory

    run_shared(use)
