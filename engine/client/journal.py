"""Every live request of an engine's client: enough to go on with another engine if that one is lost."""

from collections.abc import Iterator

from stentor.protocols.ipc.actors import TokensBatch

from .stream import RequestStream


class Journal:
    """The streams of requests that have not ended, in order of arrival."""

    def __init__(self) -> None:
        self._streams: dict[int, RequestStream] = {}
        self._arrived: list[RequestStream] = []
        """Those whose readers are to be woken."""

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[RequestStream]:
        return iter(self._streams.values())

    def __contains__(self, stream: RequestStream) -> bool:
        return stream.rid in self._streams

    def has(self, rid: int) -> bool:
        return rid in self._streams

    @property
    def open_sequences(self) -> int:
        return sum(stream.open_sequences for stream in self)

    def add(self, stream: RequestStream) -> None:
        """Its rid must be higher than all before."""
        self._streams[stream.rid] = stream

    def deliver(self, batch: TokensBatch) -> None:
        """Hands each event to its stream, and forgets those that have ended; :meth:`wake_readers` has to follow."""
        streams, arrived = self._streams, self._arrived
        for part in batch.parts:
            stream = streams.get(part.rid)
            if stream is not None:
                stream.push_part(part)
        for experts in batch.experts:
            stream = streams.get(experts.rid)
            if stream is not None:
                stream.push_experts(experts)
        for prompt in batch.prompts:
            stream = streams.get(prompt.rid)
            if stream is not None and stream.push_prompt(prompt):
                arrived.append(stream)
        for tokens in batch.tokens:
            stream = streams.get(tokens.rid)
            if stream is not None and stream.push_tokens(tokens):
                arrived.append(stream)
        for end in batch.finished:
            stream = streams.get(end.rid)
            if stream is None:
                continue
            if stream.push_end(end):
                arrived.append(stream)
            if not stream.open_sequences:
                del streams[end.rid]

    def wake_readers(self) -> None:
        """Once for all batches that came together: a server that is behind passes on what waits as one piece."""
        arrived, self._arrived = self._arrived, []
        for stream in arrived:
            stream.wake()

    def end_aborted(self, stream: RequestStream | None = None) -> list[tuple[int, int]]:
        """Ends what has been aborted, of one stream or of all; returns the sequences, each by its request and index."""
        ended: list[tuple[int, int]] = []
        for each in [*self] if stream is None else [stream]:
            ended += [(each.rid, index) for index in each.end_aborted()]
            if not each.open_sequences:
                self._streams.pop(each.rid, None)
        return ended

    def fail(self, rid: int, why: str) -> None:
        """Ends one request with an error."""
        self._streams.pop(rid).end("error", why)

    def end_all(self, why: str) -> None:
        """No engine is left that could go on with them."""
        for stream in self:
            stream.end("error", why, "engine")
        self._streams.clear()
