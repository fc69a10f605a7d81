"""Who may hold connections: in all, by address, and how many are told why not."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.config.limits import ConnectionLimits
from stentor.server.http.connections import (
    MAX_PROBES,
    MAX_PROBES_PER_CLIENT,
    MAX_TURNED_AWAY,
    Client,
    Connections,
    ConnectionSlot,
    client_of,
)


@pytest.mark.parametrize(
    ("peername", "client"),
    [
        (("192.0.2.7", 50000), "192.0.2.7"),
        (("::ffff:192.0.2.7", 50000, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 50000, 0, 0), bytes.fromhex("20010db800010002")),
        (("2001:db8:1:2:ffff::1", 50001, 0, 0), bytes.fromhex("20010db800010002")),
        (("fe80::1%eth0", 50000, 0, 2), bytes.fromhex("fe80000000000000")),
        ("", None),
        (b"", None),
        (None, None),
    ],
)
def test_a_client_is_an_address_or_what_one_customer_has_of_ipv6(peername: object, client: Client | None) -> None:
    assert client_of(peername) == client


def test_connections_are_bounded_in_all_and_places_come_back() -> None:
    connections = Connections(ConnectionLimits(max_connections=2, max_per_client=0))
    first, second = connections.enter(("192.0.2.1", 1)), connections.enter("")
    third = connections.enter(("192.0.2.1", 2))
    assert (first.refusal, second.refusal) == (None, None)
    assert "2 connections" in str(third.refusal)
    third.leave()
    assert connections.enter(("192.0.2.1", 3)).refusal is not None, "one that was refused gives nothing back"
    first.leave()
    first.leave()
    assert connections.enter(("192.0.2.1", 4)).refusal is None
    assert connections.enter(("192.0.2.1", 5)).refusal is not None, "a place is given back once"


def test_a_client_that_holds_many_leaves_room_for_others() -> None:
    connections = Connections(ConnectionLimits(max_connections=0, max_per_client=1))
    assert connections.enter(("192.0.2.1", 1)).refusal is None
    assert "one client" in str(connections.enter(("192.0.2.1", 2)).refusal)
    assert connections.enter(("192.0.2.2", 1)).refusal is None
    assert connections.enter("").refusal is None, "a socket in the file system has no address"
    assert connections.enter("").refusal is None


def test_only_so_many_are_told_why_at_a_time() -> None:
    connections = Connections(ConnectionLimits(max_connections=1), max_probes=0)
    connections.enter(None)
    refused = [connections.enter(None) for _ in range(MAX_TURNED_AWAY + 1)]
    assert [place.without_a_word for place in refused] == [False] * MAX_TURNED_AWAY + [True]
    for place in refused:
        place.leave()
    assert not connections.enter(None).without_a_word


def test_a_full_server_has_places_for_probes_and_one_client_gets_few_of_them() -> None:
    connections = Connections(ConnectionLimits(max_connections=1, max_per_client=1))
    connections.enter(("192.0.2.1", 1))
    assert not connections.enter(("192.0.2.1", 2)).only_probes, "a client that holds all it may gets none"
    mine = [connections.enter(("192.0.2.2", 1)) for _ in range(MAX_PROBES_PER_CLIENT + 1)]
    assert [place.only_probes for place in mine] == [True] * MAX_PROBES_PER_CLIENT + [False]
    assert all(place.refusal is not None and not place.without_a_word for place in mine)
    others = [connections.enter(None) for _ in range(MAX_PROBES - MAX_PROBES_PER_CLIENT + 1)]
    assert [place.only_probes for place in others] == [True] * (len(others) - 1) + [False]
    assert connections.open == 1
    mine[0].leave()
    assert connections.enter(("192.0.2.2", 1)).only_probes


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans())))
def test_the_count_is_that_of_the_places_held(steps: list[tuple[int, bool]]) -> None:
    connections = Connections(ConnectionLimits(max_connections=5, max_per_client=3))
    held: list[ConnectionSlot] = []
    for client, enters in steps:
        if enters:
            place = connections.enter((f"192.0.2.{client}", 1))
            own = sum(one.client == place.client for one in held)
            assert (place.refusal is None) == (len(held) < 5 and own < 3)
            if place.refusal is None:
                held.append(place)
            else:
                place.leave()
        elif held:
            held.pop(client % len(held)).leave()
        assert connections.open == len(held)


@pytest.mark.parametrize(
    ("files", "wanted", "taken", "told_why", "probes"),
    [
        (1 << 20, 4096, 4096, 256, 16),
        (4608, 4096, 4096, 128, 16),
        (4096, 4096, 3584, 128, 16),
        (200, 4096, 50, 37, 16),
        (200, 0, 50, 37, 16),
        (200, 20, 20, 45, 16),
        (64, 4096, 16, 12, 6),
        (resource.RLIM_INFINITY, 0, 0, 256, 16),
    ],
)
def test_connections_leave_descriptors_for_the_rest_of_the_server(
    files: int,
    wanted: int,
    taken: int,
    told_why: int,
    probes: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    connections = Connections.within_descriptors(ConnectionLimits(max_connections=wanted, max_per_client=0))
    assert connections.limits.max_connections == taken
    assert connections.limits.max_per_client == 0
    for _ in range(taken):
        assert connections.enter(None).refusal is None
    if taken:
        assert all(connections.enter(None).only_probes for _ in range(probes))
        assert [connections.enter(None).without_a_word for _ in range(told_why + 1)] == [False] * told_why + [True]
    assert [record.levelname for record in caplog.records] == (["WARNING"] if taken < wanted else [])
