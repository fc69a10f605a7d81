"""Publishes changes of the prefix cache over ZeroMQ, as vLLM does: a PUB socket, and a ROUTER socket for replays.

A subscriber gets (topic, sequence number, batch). One that misses a number asks the other socket for all batches from
some number on, and gets (number, batch) for each that is still kept, then (-1, nothing).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from stentor.protocols.ipc.config import KvEventsConfig
from stentor.protocols.ipc.kv_events import KvEventBatch

from .cache.events import Change

logger = logging.getLogger(__name__)

_KEPT_BYTES: Final = 64 << 20
"""Bytes of batches that are kept for replays, at most."""
_REQUEST_BYTES: Final = 64
"""Longest request for a replay."""
_LOOK_SECONDS: Final = 0.5
_END: Final = (-1).to_bytes(8, "big", signed=True)


class EventsUnavailable(Exception):
    """Events cannot be published; why, in one line."""


class EventPublisher:
    """Publishes the events of one engine. Publishing never blocks: a subscriber that reads too slowly misses batches. A
    thread answers requests for replays. Must be closed."""

    def __init__(self, config: KvEventsConfig, replica: int) -> None:
        """``replica``: the number of the engine, which is added to the ports. Raises :class:`EventsUnavailable`."""
        try:
            import zmq  # late: an extra
        except ImportError as error:
            raise EventsUnavailable("--kv-events-config: pip install 'stentor[kv-events]'") from error
        self._zmq = zmq
        self._encoder = msgspec.msgpack.Encoder()
        self._topic = config.topic.encode()
        self._replica = replica
        self._next = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._most_kept = config.buffer_steps if config.replay_endpoint else 0
        self._kept_bytes = 0
        self._lock = threading.Lock()
        """Guards what is kept."""
        self._ends = threading.Event()
        self._context = zmq.Context()
        self._thread: threading.Thread | None = None
        self._publishing: Any = None
        try:
            self._publishing = self._socket(zmq.PUB, config.endpoint, config.hwm)
            if config.replay_endpoint:
                replaying = self._socket(zmq.ROUTER, config.replay_endpoint, config.hwm)
                self._thread = threading.Thread(target=self._replay, args=(replaying,), name="replays", daemon=True)
                self._thread.start()
        except (zmq.ZMQError, ValueError) as error:
            self.close()
            raise EventsUnavailable(f"--kv-events-config: {error}") from error

    def publish(self, changes: Sequence[Change]) -> None:
        """Send one batch to all subscribers."""
        number, self._next = self._next, self._next + 1
        batch = self._encoder.encode(KvEventBatch(time.time(), list(changes), self._replica))
        if self._most_kept:
            with self._lock:
                self._kept.append((number, batch))
                self._kept_bytes += len(batch)
                while len(self._kept) > self._most_kept or self._kept_bytes > _KEPT_BYTES:
                    self._kept_bytes -= len(self._kept.popleft()[1])
        self._publishing.send_multipart((self._topic, number.to_bytes(8, "big"), batch))

    def close(self) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        if self._publishing is not None:
            self._publishing.close(linger=0)
        self._context.term()

    def _socket(self, kind: int, endpoint: str, hwm: int) -> Any:
        """Raises ZMQError and ValueError."""
        address = _of_replica(endpoint, self._replica)
        socket = self._context.socket(kind)
        try:
            socket.set_hwm(hwm)
            socket.setsockopt(self._zmq.MAXMSGSIZE, _REQUEST_BYTES)
            # as vLLM: a wildcard is listened on, an address is that of a listener
            if kind == self._zmq.ROUTER or "*" in address or "::" in address or address.startswith("ipc:"):
                socket.bind(address)
            else:
                socket.connect(address)
        except BaseException:
            socket.close(linger=0)
            raise
        return socket

    def _replay(self, socket: Any) -> None:
        try:
            while not self._ends.is_set():
                if not socket.poll(_LOOK_SECONDS * 1000):
                    continue
                client, *frames = socket.recv_multipart()
                if len(frames) != 2 or len(frames[1]) != 8:
                    continue  # no request of this protocol
                first = int.from_bytes(frames[1], "big")
                with self._lock:
                    wanted = [(number, batch) for number, batch in self._kept if number >= first]
                for number, batch in wanted:
                    socket.send_multipart((client, b"", number.to_bytes(8, "big"), batch))
                socket.send_multipart((client, b"", _END, b""))
        except self._zmq.ZMQError:
            logger.exception("replays of cache events have ended")
        finally:
            socket.close(linger=0)


def _of_replica(endpoint: str, replica: int) -> str:
    """The endpoint of this engine: ports count up. Raises ValueError."""
    if not replica:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{replica}"
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + replica}"
