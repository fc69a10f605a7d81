"""What the page says of connections, versions and answers."""

import asyncio
from http import HTTPStatus

import pytest

from stentor.server.config.limits import ConnectionLimits
from stentor.server.http.connections import Connections
from stentor.server.observability.request import RequestRecord
from stentor.tests.fakes import fake_state


def line(page: str, start: str) -> float:
    (found,) = [line for line in page.splitlines() if line.startswith(f"stentor:{start}")]
    return float(found.rpartition(" ")[2])


def test_connections_are_counted_while_they_are_held_and_when_they_are_refused() -> None:
    metrics = fake_state().metrics
    assert line(metrics.render().decode(), "connections_open") == 0
    connections = Connections(ConnectionLimits(max_connections=2))
    metrics.server.connections = connections
    places = [connections.enter(("127.0.0.1", port)) for port in range(3)]
    connections.refused[HTTPStatus.TOO_MANY_REQUESTS] += 3
    connections.refused[HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE] += 1
    connections.refused[HTTPStatus.REQUEST_ENTITY_TOO_LARGE] += 1
    connections.refused[HTTPStatus.NOT_IMPLEMENTED] += 1
    page = metrics.render().decode()
    assert line(page, "connections_open") == 2
    for reason, count in {"too_many": 3, "too_large": 2, "malformed": 1, "timeout": 0}.items():
        assert line(page, f'connections_refused_total{{model_name="fake/model",reason="{reason}"}}') == count
    for place in places:
        place.leave()
    assert line(metrics.render().decode(), "connections_open") == 0


@pytest.mark.anyio
async def test_tasks_of_the_loop_that_asks_are_counted() -> None:
    metrics = fake_state().metrics
    before = line(metrics.render().decode(), "tasks{")
    another = asyncio.create_task(asyncio.sleep(60))
    assert line(metrics.render().decode(), "tasks{") == before + 1
    another.cancel()


@pytest.mark.parametrize(("status", "shown"), [(200, "200"), (499, "499"), (418, "other"), (-1, "other")])
def test_a_status_that_nobody_knows_makes_no_label_of_its_own(status: int, shown: str) -> None:
    metrics = fake_state().metrics
    metrics.ended(RequestRecord("a", "GET", "/", status=status))
    assert line(metrics.render().decode(), f'http_responses_total{{model_name="fake/model",status="{shown}"}}') == 1
