"""The media of a prompt: which positions they take, what identifies them, and how long they are read."""

from array import array
from hashlib import blake2b
from typing import Final

import msgspec

from stentor.protocols.ipc.actors import Submit
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.protocols.ipc.inputs import InputSpan

_NEVER: Final = 1 << 62


class PromptMedia:
    """The media of one request, in order of position. A request without media has one without ``spans``."""

    __slots__ = ("_joined", "_read_until", "spans", "whole_parts")

    def __init__(self, submit: Submit, cross: CacheGroup | None) -> None:
        """``cross``: the worker's cache of encoded media."""
        spans, adapter = submit.inputs, submit.adapter
        self.spans = spans if adapter is None else _with_adapter_digests(spans, adapter.number)
        self.whole_parts = whole_parts(spans, len(submit.prompt), cross)
        """Prompt positions [first, end) that see each other, in order. Each is computed in one step."""
        self._joined = _joined_media(submit, cross)
        """Identifies all media together, where what one becomes depends on the others; else empty."""
        self._read_until = _read_until(submit, cross)
        """For each medium, by its start, the position behind the last one that reads it."""

    def is_read(self, span: InputSpan, position: int) -> bool:
        """Whether no position from ``position`` on reads the medium."""
        return self._read_until[span.start] <= position

    def behind(self, position: int) -> list[InputSpan]:
        """Media that are read at or after ``position``."""
        return [span for span in self.spans if self._read_until[span.start] > position]

    def uncut(self, position: int) -> int:
        """``position``, or the start of the part around it that is computed in one step.

        A row begins within none: its tokens would see of the part's beginning only what a window shows, and those of
        Gemma 3 see all of it.
        """
        return next((first for first, end in self.whole_parts if first < position < end), position)

    def keys(self, start: int, end: int) -> list[tuple[int, bytes]]:
        """The media at positions [start, end): for each its first position there, and bytes that identify medium and
        part."""
        return [
            (
                max(start, span.start),
                self._joined
                + span.digest
                + (span.start - start).to_bytes(8, "little", signed=True)
                + span.length.to_bytes(8, "little"),
            )
            for span in self.spans
            if 0 <= span.start < end and span.end > start
        ]

    def key(self, start: int, end: int) -> bytes:
        """The bytes that identify media at positions [start, end), to be hashed with the tokens."""
        return b"".join(what for _, what in self.keys(start, end))

    @property
    def root_key(self) -> bytes:
        """The bytes that identify media to which all positions attend."""
        return b"".join(span.digest for span in self.spans if span.start < 0)


def whole_parts(spans: list[InputSpan], prompt_len: int, cross: CacheGroup | None) -> list[tuple[int, int]]:
    """The positions [first, end) of a prompt that a step computes at once, for media ``spans`` in order."""
    if cross is None or not cross.whole:
        return []
    if cross.whole_prompts:
        return [(0, prompt_len)]
    if cross.joined:
        return [(spans[0].start, spans[-1].end)] if spans else []
    # text between the embeddings of a medium, such as the times of a video's frames, may be elsewhere
    return [part for span in spans for part in span.whole_parts]


def _with_adapter_digests(spans: list[InputSpan], adapter: int) -> list[InputSpan]:
    """The spans; those that all positions attend to have digests of the adapter's own, as it changes their encoding."""

    def digest(span: InputSpan) -> bytes:
        both = span.digest + adapter.to_bytes(8, "little")
        return blake2b(both, digest_size=len(span.digest), person=b"stentor heard").digest()

    return [msgspec.structs.replace(span, digest=digest(span)) if span.start < 0 else span for span in spans]


def _joined_media(submit: Submit, cross: CacheGroup | None) -> bytes:
    """Bytes that identify all between the first medium of a prompt and the last, if all that depends on all media."""
    if cross is None or not cross.joined or not submit.inputs:
        return b""
    first, end = submit.inputs[0].start, submit.inputs[-1].end
    between = array("q", submit.prompt[first:end]).tobytes()
    media = b"".join(span.digest for span in submit.inputs)
    return blake2b(between + media, digest_size=len(submit.inputs[0].digest), person=b"stentor joined").digest()


def _read_until(submit: Submit, cross: CacheGroup | None) -> dict[int, int]:
    """For each medium, by its start, the position behind the last one that reads it."""
    if cross is None or not cross.lasting:
        return {span.start: span.end if span.start >= 0 else _NEVER for span in submit.inputs}
    ends: dict[int, int] = {}
    end, begins = _NEVER, -1
    for span in reversed(submit.inputs):
        end = begins if 0 <= span.end < begins else end  # media that follow each other are read together
        ends[span.start], begins = end, span.start
    return ends
