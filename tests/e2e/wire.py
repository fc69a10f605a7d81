"""Requests whose answers are looked at as they came over the wire."""

from typing import Any

import httpx

from stentor.loadtest.server_process import ServerProcess


def post(server: ServerProcess, path: str, body: dict[str, Any]) -> bytes:
    """The body of the answer, which must be a 200; a stream is read to its end."""
    response = httpx.post(f"http://127.0.0.1:{server.port}{path}", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.content
