"""Models in this process share the fork server of their workers with other tests; programs that are run do not."""

import socket
from collections.abc import Iterator

import pytest

from stentor.server.app import first_engine
from stentor.tests.engine.forked import fork_server


class _Shared:
    """The end of one model is not that of the fork server."""

    def __init__(self, module: str) -> None:
        assert module == "stentor.engine.worker.process"

    @property
    def pid(self) -> int:
        return fork_server().pid

    def connect(self) -> socket.socket:
        return fork_server().connect()

    def close(self) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def _forks_once() -> Iterator[None]:
    fork_server()  # from the main thread, which outlives those of the models
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_engine, "ForkServer", _Shared)
        yield
