"""The demo model, for the tests that need real weights."""

from pathlib import Path

import pytest

from stentor.engine.loading.hub import DEFAULT_MODEL, resolve_model


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """What ``stentor serve`` serves when no model is named; fetched into the real cache once."""
    return resolve_model(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def demo_gguf(demo_model: Path) -> Path:
    """The demo model's one file."""
    assert demo_model.suffix == ".gguf"
    return demo_model
