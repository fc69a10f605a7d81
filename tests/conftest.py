"""Which tests run here and how: kernels, tiers, those that need the machine; and the demo model for tests of real
weights."""

import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

HAS_GPU = Path("/dev/nvidiactl").exists()
if not HAS_GPU:
    # Before anything imports Triton: it decides when a kernel is decorated.
    os.environ.setdefault("TRITON_INTERPRET", "1")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

from stentor.engine.loading.download.hub import DEFAULT_MODEL, resolve_model  # noqa: E402
from stentor.tests.support.cpu_seconds import CpuSeconds  # noqa: E402
from stentor.tests.support.machine import ExpectedSkips, Machine  # noqa: E402
from stentor.tests.support.proof_seconds import SECONDS, MeasuredTest, SecondsRecorder  # noqa: E402
from stentor.tests.support.slow_tests import SLOW_TESTS, SlowTestsRecorder  # noqa: E402
from stentor.tests.support.tiers import (  # noqa: E402
    SAMPLED_IN_TURNS,
    SHARES,
    beyond_the_sample,
    beyond_the_share,
    beyond_the_tenth,
    in_proof,
    in_turns,
    is_alone,
    portion_of,
)

with contextlib.suppress(ImportError):  # a GPU machine may have none
    from hypothesis import Phase, settings

    # the same examples in every run of `make test`; new ones are for `make properties`, 500 for 15: see examples.py
    settings.register_profile("same", derandomize=True, max_examples=15, deadline=None)
    settings.register_profile("more", max_examples=500, deadline=None)
    # those of "same" as they fail first: a smaller one is sought for up to five minutes
    settings.register_profile(
        "unshrunk",
        settings.get_profile("same"),
        phases=[each for each in Phase if each not in (Phase.shrink, Phase.explain)],
    )
    settings.load_profile("same")

with contextlib.suppress(ImportError):
    from httpx._transports import default as transports

    # reading the certificates takes 50 ms, and hundreds of clients are made
    transports.create_ssl_context = cache(transports.create_ssl_context)  # type: ignore[attr-defined]

with contextlib.suppress(ImportError):
    from uvicorn import server as uvicorn_server

    from stentor.tests.support.uvicorn_ticks import QuickTicks

    vars(uvicorn_server)["asyncio"] = QuickTicks()

pytest_plugins = ["stentor.tests.support.forked"]

EXPECTED_SKIPS = Path(__file__).with_name("expected_skips.txt")
MACHINE = pytest.StashKey[Machine]()
LOCKS = pytest.StashKey[str]()
SHARES_CORES = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-kernels", action="store_true", help="run every case of the kernel tests, not a sample")
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="interpret a kernel's programs in an order drawn from this seed",
    )
    parser.addoption(
        "--turn",
        type=int,
        help=f"run a {SHARES}th of the tests marked `proof`, the one of this number; without it, all of them",
    )
    parser.addoption("--every", action="store_true", help="run all slow tests, not the tenth of this turn")
    parser.addoption(
        "--save-slow-tests",
        action="store_true",
        help=f"measure the tests, and write those that are slow to {SLOW_TESTS.name}",
    )
    parser.addoption(
        "--save-proof-seconds",
        action="store_true",
        help=f"measure the tests marked `proof`, and write {SECONDS.name}",
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    turn = config.getoption("--turn")
    kernels = "on the GPU" if HAS_GPU else "interpreted; cases that need a GPU are deselected"
    proof = "all of it" if turn is None else f"the share of turn {turn}; again: make pytest TURN={turn}"
    return [f"kernels: {kernels}", f"proof: {proof}"]


# ---- which run


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays frozen: the garbage collector would walk a million objects again and again,
    a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.unfreeze = _stay_frozen
        gc.enable()
        gc.set_threshold(20_000, 50, 20)  # with the usual one every eighth second of the tests is the collector's


def _stay_frozen() -> None:
    """In place of ``gc.unfreeze``, which tests call that freeze what they do not measure."""


@pytest.hookimpl(trylast=True)  # after -m and -k have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this machine cannot run and what is another turn's, and orders the rest."""
    turn = config.getoption("--turn")
    left_out = {item for item in items if item.get_closest_marker("gpu") and not HAS_GPU}
    for item in items:
        if item.get_closest_marker("triton") and not (HAS_GPU or INTERPRETED):
            item.add_marker(pytest.mark.skip(reason="Triton's interpreter is switched off"))
        elif item.get_closest_marker("compiles") and INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="needs Triton's compiler: TRITON_INTERPRET=0"))
    if not config.getoption("--all-kernels"):
        here = [item for item in items if item not in left_out]
        if turn is None:
            left_out |= beyond_the_sample(here, 0)
        else:
            left_out |= beyond_the_sample(here, turn, SAMPLED_IN_TURNS)
    if turn is not None:
        left_out |= beyond_the_share(items, turn)
        if not config.getoption("every"):
            left_out |= beyond_the_tenth(items, turn)  # of all, so that a case keeps its turn whatever else runs
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
    items[:] = in_turns([item for item in items if item not in left_out])
    if config.getoption("save_slow_tests"):
        config.pluginmanager.register(CpuSeconds())
        config.pluginmanager.register(
            SlowTestsRecorder({item.nodeid: is_alone(item) for item in items if not in_proof(item)})
        )
    if config.getoption("save_proof_seconds"):
        config.pluginmanager.register(CpuSeconds())
        sample = set(items) - beyond_the_sample(items, turn or 0, SAMPLED_IN_TURNS)  # what a turn runs of all cases
        tier = [(item, portion_of(item)) for item in sample if in_proof(item)]
        measured = {item.nodeid: MeasuredTest(its.file, its.value is not None, is_alone(item)) for item, its in tier}
        config.pluginmanager.register(SecondsRecorder(measured))


# ---- how


def pytest_configure(config: pytest.Config) -> None:
    several = config.getoption("processes") > 1
    config.stash[SHARES_CORES] = several and "OMP_NUM_THREADS" not in os.environ
    if config.stash[SHARES_CORES]:
        os.environ["OMP_NUM_THREADS"] = "1"  # what tests start inherits it, and torch where nothing has imported it yet
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
    if several:
        config.stash[LOCKS] = tempfile.mkdtemp(prefix="stentor-tests-")
        config.stash[MACHINE] = Machine(Path(config.stash[LOCKS]))


def pytest_unconfigure(config: pytest.Config) -> None:
    if (folder := config.stash.get(LOCKS, None)) is not None:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the time limit: waiting for the machine does not count
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    # A loop that ends restores what it found here: a descriptor of a loop that is closed, and whose number may then be
    # that of another loop's pipe, in which libuv takes a signal's byte for part of an address.
    signal.set_wakeup_fd(-1)
    machine = item.config.stash.get(MACHINE, None)
    if machine is None:
        with _same_cpus():
            return (yield)
    alone = is_alone(item)
    cores = _every_core() if alone and item.config.stash[SHARES_CORES] else contextlib.nullcontext()
    with machine.held(alone=alone), cores, _same_cpus():
        return (yield)


@contextlib.contextmanager
def _same_cpus() -> Generator[None]:
    """Frees the process again where a test has set up a model, which holds a worker on one socket of several."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _every_core() -> Generator[None]:
    """Lets torch and the processes that are started use all cores, as they do where no tests run side by side."""
    torch = sys.modules.get("torch")
    one = os.environ.pop("OMP_NUM_THREADS")
    if torch is not None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        os.environ["OMP_NUM_THREADS"] = one
        if torch is not None:
            torch.set_num_threads(int(one))


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Fails where a test was skipped for a reason that is not expected."""
    result = yield
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or HAS_GPU:
        return result
    reasons = [each.longrepr[2] for each in reporter.stats.get("skipped", ()) if isinstance(each.longrepr, tuple)]
    unexpected = ExpectedSkips(EXPECTED_SKIPS.read_text().splitlines()).unexpected(reasons)
    for reason in unexpected:
        reporter.write_line(f"skipped, and not in {EXPECTED_SKIPS.name}: {reason}", red=True)
    if unexpected and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


# ---- what they share


@pytest.fixture(scope="module", autouse=True)
def same_threads() -> Iterator[None]:
    """Gives torch and our kernels their threads back after a file that has set up a model, for those that come next in
    this process: torch's second thread busy-waits, and costs a file of small tensors ten times the CPU time."""
    if "stentor.kernels" not in sys.modules:  # nor has anything set threads
        yield
        return
    import torch

    from stentor.tests.kernels.helpers import thread_count

    with thread_count(torch.get_num_threads()):
        yield


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Of tests that are coroutines; modules that need uvloop, as the server has it, say so."""
    return "asyncio"


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """What ``stentor serve`` serves when no model is named; fetched into the real cache once."""
    return resolve_model(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def demo_gguf(demo_model: Path) -> Path:
    """The demo model's one file."""
    assert demo_model.suffix == ".gguf"
    return demo_model
