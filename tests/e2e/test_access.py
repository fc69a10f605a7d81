"""The command with access restricted: TLS on a socket in the file system, keys that change, an end without remains."""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from stentor.tests.e2e.made_up import ECHO
from stentor.tests.e2e.processes import eventually
from stentor.tests.e2e.test_dummy_weights import CONFIG
from stentor.tests.server.middleware.certificates import Authority

ADMIN_KEY = "of-the-administrator"


@contextmanager
def running(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "STENTOR_ADMIN_KEY": ADMIN_KEY}
    command = [sys.executable, "-P", "-m", ECHO, "serve", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in map(int, listed) for one in (child, *children(child))]


def test_a_server_with_tls_and_keys_is_reloaded_and_cleaned_up(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, second = authority.sign("first"), authority.sign("second")
    cert, key, keys = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "keys"
    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    keys.write_text("old-key")
    keys.chmod(0o600)
    model, sock, log = tmp_path / "model", tmp_path / "stentor.sock", tmp_path / "log"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    trust = ssl.create_default_context(cafile=authority.cert)

    def connect() -> httpx.Client:
        return httpx.Client(transport=httpx.HTTPTransport(verify=trust, uds=str(sock)), base_url="https://localhost")

    def status(path: str, key: str) -> int:
        with connect() as client:
            return client.get(path, headers={"authorization": f"Bearer {key}"}).status_code

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        return "ready in" in log.read_text()

    files = ["--tls-cert", str(cert), "--tls-key", str(key), "--api-key-file", str(keys), "--uds", str(sock)]
    made_up = ["--load-format", "dummy", "--kv-cache-memory", "8MiB", "--served-model-name", "made-up"]
    with running([str(model), *made_up, *files], log) as process:
        eventually(ready, 60, "the server is ready")
        assert status("/health", "none") == 200
        assert (status("/v1/models", "old-key"), status("/v1/models", "new-key"), status("/v1/models", ADMIN_KEY)) == (
            200,
            401,
            200,
        )
        for child in children(process.pid):
            assert ADMIN_KEY.encode() not in Path(f"/proc/{child}/environ").read_bytes()
        body: dict[str, Any] = {"model": "made-up", "prompt": [5, 6], "max_tokens": 100, "stream": True}
        asked = {**body, "ignore_eos": True}
        with (
            connect() as client,
            client.stream("POST", "/v1/completions", json=asked, headers={"authorization": "Bearer old-key"}) as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines)
            keys.write_text("new-key")
            shutil.copy(second.cert, cert)
            shutil.copy(second.key, key)
            process.send_signal(signal.SIGHUP)
            eventually(lambda: "new connections get" in log.read_text(), 60, "it has reloaded")
            assert (status("/v1/models", "old-key"), status("/v1/models", "new-key")) == (401, 200)
            assert "data: [DONE]" in list(lines), "what had begun goes on"
        began = time.monotonic()
        process.terminate()
        assert process.wait(60) == 0, log.read_text()
        assert time.monotonic() - began < 25, "nothing was left to wait 30 seconds for"
    assert not sock.exists()
    text = log.read_text()
    assert "reloaded keys: 1 API keys, 1 admin keys" in text
    assert not [secret for secret in ("old-key", "new-key", ADMIN_KEY) if secret in text]
