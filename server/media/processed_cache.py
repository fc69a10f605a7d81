"""Cache of processed media by digest, so that a repeated picture costs nothing."""

from collections import OrderedDict
from collections.abc import Hashable
from hashlib import blake2b
from typing import Final, Generic, Literal, TypeVar

import msgspec

from stentor.engine.model_config.towers.media_spec import Modality

DIGEST_BYTES: Final = 16
_ENTRY_BYTES: Final = 512
"""Bytes of an entry besides its payload and its text."""

Key = TypeVar("Key", bound=Hashable)


class ProcessedMedia(msgspec.Struct, frozen=True):
    """One processed piece of media, shared by all requests with it."""

    modality: Modality
    digest: bytes
    """Identifies the media and the options of processing. 16 bytes."""
    payload: bytes | bytearray
    """safetensors, by the names of the arguments of the model's encoder. Never changed, and never copied into bytes,
    which would hold the interpreter's lock for a millisecond a megabyte."""
    written: str
    """The chat template's placeholder."""
    replacement: str
    """Its replacement in the prompt's text."""
    grid: tuple[int, int, int] | None = None
    """Frames, rows and columns of its embeddings, where positions follow them."""
    interval: float = 1.0
    """Distance of the positions of two frames."""

    @property
    def bytes(self) -> int:
        return len(self.payload) + len(self.replacement) + _ENTRY_BYTES


def content_digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def media_digest(
    modality: Modality | Literal["prompt"], content: bytes, options: dict[str, object], *, alone: bool
) -> bytes:
    """Identifies media by their content and the options of processing."""
    said = msgspec.msgpack.encode((modality, content, sorted(options.items()), alone))
    return blake2b(said, digest_size=DIGEST_BYTES).digest()


class ProcessedCache:
    """Keeps the most recently used media, up to ``most`` bytes. For the event loop."""

    def __init__(self, most: int) -> None:
        """``most`` in bytes; 0 disables the cache."""
        self._most = most
        self._kept: OrderedDict[bytes, ProcessedMedia] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, digest: bytes) -> ProcessedMedia | None:
        found = self._kept.get(digest)
        if found is not None:
            self._kept.move_to_end(digest)
        return found

    def put(self, media: ProcessedMedia) -> None:
        """Evicts the least recently used entries for it; an entry larger than the cache is not stored."""
        if media.bytes > self._most or media.digest in self._kept:
            return
        self._kept[media.digest] = media
        self.bytes += media.bytes
        while self.bytes > self._most:
            self.bytes -= self._kept.popitem(last=False)[1].bytes

    def clear(self) -> None:
        self._kept.clear()
        self.bytes = 0


class Names(Generic[Key]):
    """Clients' names of their media, the latest ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._named: OrderedDict[Key, bytes] = OrderedDict()

    def get(self, key: Key) -> bytes | None:
        found = self._named.get(key)
        if found is not None:
            self._named.move_to_end(key)
        return found

    def put(self, key: Key, content: bytes) -> None:
        self._named[key] = content
        self._named.move_to_end(key)
        if len(self._named) > self._most:
            self._named.popitem(last=False)

    def clear(self) -> None:
        self._named.clear()
