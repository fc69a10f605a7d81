"""How Triton kernels run here, which of their cases run, and the demo model for tests that need real weights."""

import contextlib
import os
import random
from collections import defaultdict
from pathlib import Path

import pytest

HAS_GPU = Path("/dev/nvidiactl").exists()
if not HAS_GPU:
    # Before anything imports Triton: it decides when a kernel is decorated.
    os.environ.setdefault("TRITON_INTERPRET", "1")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

SAMPLE_SEED = 20260731
CASES_A_KERNEL_TEST = 2

from stentor.engine.loading.hub import DEFAULT_MODEL, resolve_model  # noqa: E402

with contextlib.suppress(ImportError):  # a GPU machine may have none
    from hypothesis import settings

    # the same examples in every run of `make test`; new ones are for `make properties`, 500 for 100: see examples.py
    settings.register_profile("same", derandomize=True)
    settings.register_profile("more", max_examples=500)
    settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-kernels", action="store_true", help="run every case of the kernel tests, not a seeded sample"
    )


def pytest_report_header() -> str:
    return "kernels: on the GPU" if HAS_GPU else "kernels: interpreted; cases that need a GPU are deselected"


@pytest.hookimpl(trylast=True)  # after -m and -k have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what this machine cannot run, and of interpreted kernel tests keeps a seeded sample."""
    left_out = {item for item in items if item.get_closest_marker("gpu") and not HAS_GPU}
    for item in items:
        if item.get_closest_marker("triton") and not (HAS_GPU or INTERPRETED):
            item.add_marker(pytest.mark.skip(reason="Triton's interpreter is switched off"))
        elif item.get_closest_marker("compiles") and INTERPRETED:
            item.add_marker(pytest.mark.skip(reason="needs Triton's compiler: TRITON_INTERPRET=0"))
    if not HAS_GPU and not config.getoption("--all-kernels"):
        left_out |= _beyond_the_sample(items)
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _beyond_the_sample(items: list[pytest.Item]) -> set[pytest.Item]:
    cases: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        sampled = item.get_closest_marker("triton") or item.get_closest_marker("compiles")
        if sampled and not item.get_closest_marker("gpu"):
            cases[item.path, getattr(item, "originalname", item.name)].append(item)
    left_out: set[pytest.Item] = set()
    for (path, name), group in cases.items():
        keep = random.Random(f"{SAMPLE_SEED} {path.name} {name}").sample(group, min(CASES_A_KERNEL_TEST, len(group)))
        left_out.update(item for item in group if item not in keep)
    return left_out


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
