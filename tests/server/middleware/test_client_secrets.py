"""How many client secrets one key may have: always fewer than it takes from the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.common.keys import ANYONE, Caller
from stentor.server.middleware import client_secrets as module
from stentor.server.middleware.client_secrets import ClientSecrets, SecretsFull


def key(name: str) -> Caller:
    return Caller(salt=name, name=name, owner=name)


def fill(secrets: ClientSecrets, caller: Caller, size: int = 2) -> int:
    """How many it gets."""
    count = 0
    while True:
        try:
            secrets.make(caller, b"x" * size, 60)
        except SecretsFull:
            return count
        count += 1


def test_a_key_that_takes_all_it_can_leaves_some_to_the_next() -> None:
    secrets = ClientSecrets(most=64)
    assert [fill(secrets, key(f"{number}")) for number in range(8)] == [32, 16, 8, 4, 2, 1, 1, 0]
    assert len(secrets) == 64


def test_a_key_that_is_alone_may_have_all() -> None:
    assert fill(ClientSecrets(most=64), ANYONE) == 64
    assert fill(ClientSecrets(most=64), Caller(name="api-1", owner="only")) == 64


def test_large_sessions_of_one_key_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    secrets = ClientSecrets()
    assert fill(secrets, key("greedy"), 100) == 5
    secrets.make(key("other"), b"x" * 250, 60)


def test_what_has_expired_is_given_back_to_the_key_that_had_it() -> None:
    now = [0.0]
    secrets = ClientSecrets(lambda: now[0], 8)
    for _ in range(3):
        assert (fill(secrets, key("one")), fill(secrets, key("two"))) == (4, 2)
        now[0] += 61
    assert fill(secrets, ANYONE) == 8


steps = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(1, 30), st.integers(0, 20)))


@given(steps)
def test_whatever_is_made_and_expires_the_parts_are_those_of_the_secrets(
    steps: list[tuple[str, int, int, int]],
) -> None:
    now = [0.0]
    secrets = ClientSecrets(lambda: now[0], 16)
    for name, size, seconds, later in steps:
        try:
            secrets.make(key(name), b"x" * size, seconds)
        except SecretsFull:
            assert len(secrets) >= 8
        kept = list(secrets._secrets.values())
        for name in "abc":
            own = [secret for secret in kept if secret.caller.owner == name]
            held = (secrets._places.held(name), secrets._bytes.held(name))
            assert held == (len(own), sum(len(secret.session) for secret in own))
        now[0] += later
