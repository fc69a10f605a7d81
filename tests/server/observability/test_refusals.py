"""Every request that is turned away is counted once, under one reason."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from stentor.server.app.state import ServerState
from stentor.server.config.config import ObserveConfig
from stentor.server.observability.observer import open_observer
from stentor.tests.fakes import fake_state
from stentor.tests.server.harness import CHAT, COMPLETIONS, HELLO, in_memory

pytestmark = pytest.mark.anyio


def counted(state: ServerState) -> dict[str, float]:
    """What is above 0 of rejections and answers."""
    return dict(_counted(state))


def _counted(state: ServerState) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(state.metrics.render().decode()):
        if family.name in ("stentor:admission_rejections", "stentor:http_responses"):
            for sample in family.samples:
                if sample.name.endswith("_total") and sample.value:
                    yield sample.labels.get("reason") or sample.labels["status"], sample.value


CASES = [
    ("GET", "/nowhere", None, {"404": 1, "not_found": 1}),
    ("GET", COMPLETIONS, None, {"405": 1, "not_found": 1}),
    ("POST", CHAT, {"messages": "?"}, {"400": 1, "invalid": 1}),
    ("POST", COMPLETIONS, {"prompt": "x" * 999}, {"400": 1, "limit": 1}),
    ("POST", CHAT, {"messages": HELLO, "n": 10**6}, {"400": 1, "limit": 1}),
    ("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 1}, {"200": 1}),
]


@pytest.mark.parametrize(("method", "path", "body", "expected"), CASES)
async def test_a_refusal_is_counted_under_its_reason(
    method: str, path: str, body: dict[str, Any] | None, expected: dict[str, int]
) -> None:
    state = fake_state()
    state = replace(state, observer=open_observer(ObserveConfig(), state.metrics, "fake/model"))
    async with in_memory(state) as client:
        await client.request(method, path, json=body)
    assert counted(state) == expected


async def test_a_server_that_drains_counts_what_it_turns_away_and_no_probes() -> None:
    state = fake_state()
    state = replace(state, observer=open_observer(ObserveConfig(), state.metrics, "fake/model"))
    state.admission.draining = True
    async with in_memory(state) as client:
        await client.post(CHAT, json={"messages": HELLO})
        await client.get("/health")
    assert counted(state) == {"503": 2, "draining": 1}, "a probe is no request that was turned away"
