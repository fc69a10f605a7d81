"""The live requests of a client, with enough state to continue them on another engine."""

from collections.abc import Iterator

from stentor.protocols.ipc.actors import Fault, TokensBatch

from .stream import RequestStream


class Journal:
    """The streams of requests that have not ended, in order of arrival."""

    def __init__(self) -> None:
        self._streams: dict[int, RequestStream] = {}
        self._arrived: list[RequestStream] = []
        """Streams whose readers must be woken."""

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
        """Add a stream; its rid must be higher than all before."""
        self._streams[stream.rid] = stream

    def deliver(self, batch: TokensBatch) -> None:
        """Pass events to their streams, and forget streams that have ended. Call :meth:`wake_readers` afterwards."""
        streams, arrived = self._streams, self._arrived
        for part in batch.parts:
            stream = streams.get(part.rid)
            if stream is not None and stream.push_part(part):
                arrived.append(stream)
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
        """Wake the readers, once for all batches received together: a slow server then gets the tokens as one piece."""
        arrived, self._arrived = self._arrived, []
        for stream in arrived:
            stream.wake()

    def end_aborted(self, stream: RequestStream | None = None) -> list[tuple[int, int]]:
        """End aborted sequences of one stream or of all; returns their (rid, index)."""
        ended: list[tuple[int, int]] = []
        for each in [*self] if stream is None else [stream]:
            ended += [(each.rid, index) for index in each.end_aborted()]
            if not each.open_sequences:
                self._streams.pop(each.rid, None)
        return ended

    def fail(self, rid: int, why: str) -> None:
        """End one request with an error."""
        self._streams.pop(rid).end("error", why)

    def end_all(self, why: str, fault: Fault) -> None:
        """End every stream with an error, because no engine is left."""
        for stream in self:
            stream.end("error", why, fault)
        self._streams.clear()
