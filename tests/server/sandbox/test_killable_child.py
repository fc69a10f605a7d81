"""The socket between the server and a child that tries what clients bring."""

import socket
import struct
import time

import pytest

from stentor.server.grammar.process import GrammarJob
from stentor.server.sandbox import killable_child
from stentor.server.sandbox.child import receive, send
from stentor.server.sandbox.killable_child import ChildNotStarted, KillableChild
from stentor.tests.engine.unkillable import Unkillable, unkillable
from stentor.tests.support.descriptors import open_descriptors


def test_a_message_arrives_as_it_was_sent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, GrammarJob("start: /é/"))
        assert receive(theirs, GrammarJob, time.monotonic() + 60) == GrammarJob("start: /é/")


def test_a_child_that_announces_more_than_it_can_mean_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("!Q", 1 << 40))
        with pytest.raises(ConnectionError, match="announces a message"):
            receive(ours, GrammarJob, time.monotonic() + 60)


def test_one_that_says_nothing_is_late_and_one_that_ends_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, pytest.raises(TimeoutError):
            receive(ours, GrammarJob, time.monotonic() + 0.01)
        with pytest.raises(ConnectionError, match="closed"):
            receive(ours, GrammarJob, time.monotonic() + 60)


def test_a_child_that_cannot_be_killed_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with unkillable(Unkillable) as child:
        monkeypatch.setattr(killable_child, "spawn", lambda *_, **__: child)
        met: list[socket.socket] = []
        link = KillableChild("template", "the template process", lambda connection, _: met.append(connection))
        link.start()
        link.close()
        assert child.given_up
        assert met[0].fileno() == -1
    assert "does not die" in caplog.text


def test_a_child_that_cannot_be_spawned_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_child(*_: object, **__: object) -> None:
        raise OSError(11, "no process")

    monkeypatch.setattr(killable_child, "spawn", no_child)
    before = open_descriptors()
    with pytest.raises(ChildNotStarted, match="no process") as failure:
        KillableChild("nowhere", "nobody", lambda *_: None).start()
    assert failure.tb is not None, "the frames that had the sockets are still there"
    assert not open_descriptors() - before
