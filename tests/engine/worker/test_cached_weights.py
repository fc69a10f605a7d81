"""Prepared weights in a memory file: what a later worker finds there, and what it does not trust."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.sharing.weight_cache import (
    DATA_START,
    WeightHeader,
    clear,
    create_weight_file,
    read_header,
    write_header,
)
from stentor.engine.worker import cached_weights
from stentor.engine.worker.cached_weights import CachedWeights, weights_key
from stentor.engine.worker.setup import decoder as setup_family
from stentor.engine.worker.setup.setup import set_up
from stentor.kernels import native
from stentor.kernels.native.memory import HUGE, SharedHuge
from stentor.protocols.ipc.actors import WorkerReady
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep, StepPlan, StepResult
from stentor.tests.parity import tiny

LENGTH = 20


def _large_pages_can_be_shared() -> bool:
    fd = create_weight_file()
    try:
        clear(fd, HUGE)
        return SharedHuge(fd, DATA_START, HUGE, writable=True).enlarge(0, HUGE)
    finally:
        os.close(fd)


needs_large_pages = pytest.mark.skipif(
    native.library() is None or not _large_pages_can_be_shared(), reason="no large pages for shared memory here"
)


@pytest.fixture
def file() -> Iterator[int]:
    fd = create_weight_file()
    yield fd
    os.close(fd)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen2")  # biases, and a head of its own
    tiny.make("qwen2", folder)
    return folder


def _config(folder: Path, **changes: object) -> WorkerConfig:
    config = WorkerConfig(str(folder), device="cpu", dtype="float32", threads=2, kv_cache_memory=1 << 22)
    return msgspec.structs.replace(config, **changes)


class _Started:
    """A worker's set-up, and what it reported meanwhile."""

    def __init__(self, config: WorkerConfig, fd: int | None) -> None:
        self.phases: list[str] = []
        setup = set_up(config, lambda phase, _done, _total: self.phases.append(phase), fd)
        self._runner = setup.runner
        self.ready: WorkerReady = setup.ready

    @property
    def loaded(self) -> bool:
        return "loading weights" in self.phases

    def steps(self) -> list[StepResult]:
        """A prompt and the token after it, with every number that says something of the logits; without the time."""
        params = SamplingParams(max_tokens=2, temperature=0.0, logprobs=20, prompt_logprobs=20)
        row = NewRow(0, list(range(3, 3 + LENGTH)), LENGTH, params, 0, [0, 1])
        plans = [
            StepPlan(0, 0, [], [row], [RowStep(0, 0, LENGTH, [], True)]),
            StepPlan(0, 1, [], [], [RowStep(0, LENGTH, 1, [], True)]),
        ]
        return [msgspec.structs.replace(self._runner.step(plan), seconds=0.0) for plan in plans]


# ---- across workers


@needs_large_pages
@pytest.mark.parametrize(
    "changes",
    [{}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "quantization": "int8"}, {"batch_invariant": True}],
    ids=str,
)
def test_a_later_worker_finds_the_weights_and_computes_bitwise_the_same(
    folder: Path, file: int, changes: dict[str, object]
) -> None:
    config = _config(folder, **changes)
    alone = _Started(config, None)
    first = _Started(config, file)
    assert alone.loaded
    assert first.loaded
    expected = alone.steps()
    assert expected[0].prompt_logprobs
    assert first.steps() == expected
    for _ in range(2):
        later = _Started(config, file)
        assert not later.loaded
        assert later.steps() == expected
        assert later.ready.limits == first.ready.limits
        assert (later.ready.num_blocks, later.ready.max_model_len) == (
            first.ready.num_blocks,
            first.ready.max_model_len,
        )


@needs_large_pages
def test_a_later_worker_finds_also_what_was_made_of_stored_weights(tmp_path: Path, file: int) -> None:
    tiny.make("deepseek-v3-dense", tmp_path)
    first = _Started(_config(tmp_path), file)
    later = _Started(_config(tmp_path), file)
    assert (first.loaded, later.loaded) == (True, False)
    assert later.steps() == first.steps()


@needs_large_pages
def test_a_later_worker_has_the_cache_that_the_first_one_settled(
    folder: Path, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(folder, kv_cache_memory=None)
    monkeypatch.setattr(setup_family, "default_kv_bytes", lambda _weights, _share: 1 << 22)
    first = _Started(config, file)
    monkeypatch.setattr(setup_family, "default_kv_bytes", lambda _weights, _share: 1 << 21)
    assert _Started(config, file).ready.num_blocks == first.ready.num_blocks
    assert _Started(config, None).ready.num_blocks == first.ready.num_blocks // 2


@needs_large_pages
def test_what_was_made_for_something_else_is_not_taken(folder: Path, file: int, tmp_path: Path) -> None:
    tiny.make("qwen2", tmp_path)
    config = _config(tmp_path)
    expected = _Started(config, file).steps()
    weights = next(tmp_path.glob("*.safetensors"))
    assert not _Started(config, file).loaded
    os.utime(weights, ns=(1, 1))
    assert _Started(config, file).loaded
    assert not _Started(config, file).loaded
    assert _Started(_config(tmp_path, dtype="bfloat16"), file).loaded
    assert _Started(_config(tmp_path, block_size=32), file).loaded
    again = _Started(config, file)
    assert again.loaded
    assert again.steps() == expected
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((tmp_path / "config.json").read_text()) | {"rms_norm_eps": 0.5})
    )
    other = _Started(config, file)
    assert other.loaded
    assert other.steps() != expected


@needs_large_pages
def test_a_file_that_was_not_finished_is_begun_anew(folder: Path, file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config(folder)
    expected = _Started(config, None).steps()
    with monkeypatch.context() as patched:
        patched.setattr(cached_weights, "write_header", lambda _fd, _header: None)  # the worker died just before
        _Started(config, file)
    assert read_header(file) is None
    for loaded in (True, False):
        started = _Started(config, file)
        assert started.loaded is loaded
        assert started.steps() == expected


@needs_large_pages
def test_weights_that_lie_otherwise_than_the_model_expects_are_loaded_again(
    folder: Path, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(folder)
    expected = _Started(config, file).steps()
    header = read_header(file)
    assert header is not None
    write_header(file, msgspec.structs.replace(header, layout="of another version"))
    for loaded in (True, False):
        started = _Started(config, file)
        assert started.loaded is loaded
        assert started.steps() == expected


def test_without_large_pages_nothing_is_kept_and_the_worker_is_as_before(
    folder: Path, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(folder)
    expected = _Started(config, None).steps()
    monkeypatch.setattr(SharedHuge, "enlarge", lambda *_: False)
    for _ in range(2):
        started = _Started(config, file)
        assert started.loaded
        assert started.steps() == expected
    assert read_header(file) is None
    assert os.fstat(file).st_blocks == 0


@needs_large_pages
def test_large_pages_that_run_out_leave_a_working_model_and_no_file(
    folder: Path, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(folder)
    expected = _Started(config, None).steps()
    enlarge, calls = SharedHuge.enlarge, [0]

    def scarce(memory: SharedHuge, start: int, nbytes: int) -> bool:
        calls[0] += 1
        return calls[0] == 1 and enlarge(memory, start, nbytes)

    monkeypatch.setattr(SharedHuge, "enlarge", scarce)
    kept = _Started(_config(folder, max_model_len=128), file)
    assert kept.loaded
    started = _Started(config, file)
    assert started.steps() == expected


@needs_large_pages
def test_large_pages_that_come_slowly_come_later(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_weights, "_TRIED", 0)
    monkeypatch.setattr(cached_weights, "_QUICK", 1 << 60)
    monkeypatch.setattr(cached_weights, "_STEP", HUGE)
    kept = CachedWeights(file, "key", lambda: 6 << 20)
    kept.begin()
    tensor = kept.take(6 << 20)
    tensor.copy_(torch.arange(6 << 20) % 251)
    with monkeypatch.context() as ended:  # before it was through
        ended.setattr(SharedHuge, "join", lambda *_: False)
        kept.keep(1, 2)
        assert kept.later is not None
        kept.later.join()
    assert _large_kilobytes(tensor) == 2048, "the first is large at once"
    later = CachedWeights(file, "key", int)
    found = later.take(6 << 20)
    later.keep(1, 2)
    assert later.later is not None
    later.later.join()
    assert _large_kilobytes(found) == 3 * 2048
    assert torch.equal(found, (torch.arange(6 << 20) % 251).to(torch.uint8))


def _large_kilobytes(tensor: torch.Tensor) -> int:
    """In large pages, of the mapping in which a tensor lies: others may come and go meanwhile."""
    inside, at = False, tensor.data_ptr()
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            begin, end = (int(each, 16) for each in first.split("-"))
            inside = begin <= at < end
        elif inside and first == "ShmemPmdMapped:":
            return int(rest[0])
    raise AssertionError("the tensor lies in no mapping")


# ---- memory


PROGRAM = """
import os, sys, torch
from pathlib import Path
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.sharing.weight_cache import create_weight_file
from stentor.engine.worker import cached_weights
from stentor.engine.worker.cached_weights import CachedWeights, weights_key
from stentor.protocols.ipc.config import WorkerConfig
print(weights_key(open_checkpoint(Path(sys.argv[1])), WorkerConfig(sys.argv[1]), torch.float32), flush=True)
file = create_weight_file()
kept = CachedWeights(file, "key", lambda: 3 << 20)
assert not kept.filled
kept.begin()
tensors = [kept.take(5), kept.take(3 << 20), kept.take(0)]
assert [tensor.data_ptr() % 64 for tensor in tensors[:2]] == [0, 0]
assert not any(tensor.any() for tensor in tensors[:2])
for tensor in tensors:
    tensor.fill_(7)
pages = [line.split()[1] for line in open("/proc/self/smaps") if line.startswith("ShmemPmdMapped")]
print(max(map(int, pages)), flush=True)
kept.keep(1, 2)
assert tensors[1][9] == 7
if os.fork() == 0:
    tensors[0][0] = 1
    os._exit(0)
print(os.WTERMSIG(os.wait()[1]), flush=True)
later = CachedWeights(file, "key", int)
found = [later.take(5), later.take(3 << 20)]
assert later.filled and found[0].tolist() == [7] * 5 and int(found[1].min()) == 7
assert not later.agrees
later.take(0)
assert later.agrees
assert CachedWeights(file, "other", int).found is None
print(os.fstat(file).st_size)
"""


@pytest.fixture(scope="module")
def program(folder: Path) -> subprocess.CompletedProcess[str]:
    """Of two tests: most of its time is that of importing torch."""
    command = [sys.executable, "-P", "-c", PROGRAM, str(folder)]
    return subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=False
    )


@pytest.mark.proof
@needs_large_pages
def test_memory_that_is_kept_is_in_large_pages_and_ends_a_worker_that_writes_there(
    program: subprocess.CompletedProcess[str],
) -> None:
    assert program.stderr == ""
    assert program.stdout.split()[1:3] == ["4096", "11"], "kilobytes, and SIGSEGV"
    assert int(program.stdout.split()[3]) == DATA_START + (4 << 20)


@needs_large_pages
def test_a_model_takes_no_more_memory_for_being_kept(folder: Path, file: int) -> None:
    _Started(_config(folder), file)
    stored = sum(each.stat().st_size for each in folder.glob("*.safetensors"))
    header = read_header(file)
    assert header is not None
    assert os.fstat(file).st_blocks * 512 <= header.nbytes + 4096
    assert stored <= header.nbytes <= stored * 1.3 + 2 * HUGE


# ---- the file


def test_a_header_is_read_only_where_the_mark_stands(file: int) -> None:
    assert read_header(file) is None
    clear(file, HUGE)
    assert read_header(file) is None
    header = WeightHeader("key", "layout", HUGE, 128, 9)
    write_header(file, header)
    assert read_header(file) == header
    clear(file, HUGE)
    assert read_header(file) is None, "whoever starts anew takes the mark away first"


@pytest.mark.parametrize(
    "damage",
    [
        (0, b"\0" * 8),
        (8, struct.pack("<Q", 1 << 60)),
        (8, struct.pack("<Q", 3)),
        (16, b"}"),
    ],
    ids=["no mark", "a length without end", "cut short", "no JSON"],
)
def test_a_damaged_header_is_none(file: int, damage: tuple[int, bytes]) -> None:
    clear(file, HUGE)
    write_header(file, WeightHeader("key", "layout", HUGE, 128, 9))
    os.pwrite(file, damage[1], damage[0])
    assert read_header(file) is None


def test_a_file_that_is_shorter_than_its_header_says_is_not_whole(file: int) -> None:
    clear(file, HUGE)
    write_header(file, WeightHeader("key", "layout", 2 * HUGE, 128, 9))
    assert read_header(file) is None


def test_a_key_does_not_depend_on_the_process(program: subprocess.CompletedProcess[str], folder: Path) -> None:
    ours = weights_key(open_checkpoint(folder), WorkerConfig(str(folder)), torch.float32)
    assert program.stdout.split()[0] == ours, program.stderr


def test_a_descriptor_that_is_no_memory_file_is_done_without(folder: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        config = _config(folder)
        assert _Started(config, reader).steps() == _Started(config, None).steps()
        with pytest.raises(OSError, match="seek"):
            CachedWeights(reader, "key", int)
    finally:
        os.close(reader)
        os.close(writer)
