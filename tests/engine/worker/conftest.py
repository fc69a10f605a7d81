"""What tests of runners share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stentor.tests.engine.worker.runners import WatchedDecoder, load
from stentor.tests.parity import tiny


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small are slower in many."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> WatchedDecoder:
    """A Llama of two layers."""
    folder: Path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder, layers=2)
    return load(folder)
