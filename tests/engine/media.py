"""What requests of tests bring besides tokens."""

import asyncio
import os
from functools import cache
from typing import NamedTuple

import msgspec

from stentor.engine.channel.arena import Arena, ArenaReader
from stentor.engine.client.media import Media, MediaStore, StreamedMedia
from stentor.protocols.ipc.actors import Append, Submit
from stentor.protocols.ipc.audio import Alignment, PromptProbe, TokenRules
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.protocols.ipc.inputs import ArenaRef, Streamed
from stentor.protocols.ipc.sampling import SamplingParams

_ARENA_BYTES = 256 << 20


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


class Audio(NamedTuple):
    """A window of audio that a request is about, and what it asks of its prompt."""

    pcm: bytes
    digest: bytes
    rules: TokenRules | None = None
    no_speech: tuple[int, int] | None = None
    align: Alignment | None = None

    @property
    def media(self) -> list[Media]:
        return [Media(self.pcm, self.digest)]

    @property
    def probe(self) -> PromptProbe | None:
        if self.no_speech is None and self.align is None:
            return None
        return PromptProbe(self.no_speech, self.align)

    def ruled(self, params: SamplingParams) -> SamplingParams:
        return msgspec.structs.replace(params, rules=self.rules)


class Heard(NamedTuple):
    """Audio that comes piece by piece, as far as it has come."""

    pcm: bytes = b""
    ended: bool = False


class Shelf:
    """The client's side of an arena, and the worker's."""

    def __init__(self, *, late: bool = False) -> None:
        """``late``: whatever its size, nothing is written before :meth:`write`."""
        self.store = MediaStore(Arena(_ARENA_BYTES), **({"inline_bytes": 0} if late else {}))
        self.reader = ArenaReader(os.dup(self.store.arena.fd))
        self._streams: dict[int, StreamedMedia] = {}

    def bring(
        self,
        submit: Submit,
        cross: CacheGroup | None,
        audio: Audio | None = None,
        streamed: Heard | None = None,
        media: list[Media] | None = None,
    ) -> Submit:
        """The request with what it brings, and with what it asks of it."""
        if audio is not None:
            params = audio.ruled(submit.params)
            submit, media = msgspec.structs.replace(submit, params=params, probe=audio.probe), audio.media
        spans = self.store.place(submit.rid, media or [], 0 if cross is None else cross.window)
        if streamed is not None:
            stream = self._streams[submit.rid] = self.store.stream(submit.rid)
            try:
                stream.append(streamed.pcm, last=streamed.ended)
                begun = stream.streamed()
            except ValueError:  # no client sends it: the engine is to say so too
                begun = Streamed([ArenaRef(0, len(streamed.pcm))], streamed.ended)
            submit = msgspec.structs.replace(submit, streamed=begun)
        self.store.given(submit.rid)
        return msgspec.structs.replace(submit, inputs=spans)

    def write(self, rid: int) -> None:
        """What an engine asks for that wants the media of a request."""
        _runner().run(self.store.write(rid))

    def append(self, rid: int, pcm: bytes, *, last: bool, live: bool = True) -> Append:
        """For its engine, also what no client would send; ``heard``: whether the request has not ended."""
        try:
            return Append(rid, self._streams[rid].append(pcm, last=last, live=live), last)
        except (KeyError, ValueError):
            return Append(rid, [ArenaRef(0, len(pcm))], last)

    def again(self, submit: Submit) -> Submit:
        """For another engine: with all that has been streamed."""
        if submit.streamed is not None:
            submit = msgspec.structs.replace(submit, streamed=self._streams[submit.rid].streamed())
        self.store.given(submit.rid)
        return submit
