"""Records changes of the prefix cache for routers (:mod:`stentor.protocols.ipc.kv_events`)."""

from collections.abc import Sequence

from stentor.protocols.ipc.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

_MEDIUM = "GPU"
"""vLLM's name for the memory of the device, whatever it is."""

Change = BlockStored | BlockRemoved | AllBlocksCleared


class CacheEvents:
    """Collects changes that the block pool and the scheduler's output report. Partly filled blocks are not reported."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._reported: set[bytes] = set()
        """Digests of the blocks that listeners know."""
        self._changes: list[Change] = []
        self._last = b""
        """Digest of the last block of the last change, if that stored blocks."""

    def stored(
        self, digest: bytes, parent: bytes | None, tokens: Sequence[int], adapter: str | None, salt: str
    ) -> None:
        """A full block got its hash. ``parent`` is the digest of the block before; None: it is the first."""
        if digest in self._reported:
            return
        self._reported.add(digest)
        last = self._changes[-1] if self._changes else None
        if isinstance(last, BlockStored) and parent == self._last and last.lora_name == adapter:
            last.block_hashes.append(_hash(digest))
            last.token_ids.extend(tokens)
            if last.extra_keys is not None:
                last.extra_keys.append([salt])
        else:
            before = None if parent is None else _hash(parent)
            keys: list[list[str] | None] | None = [[salt]] if salt else None
            stored = BlockStored(
                [_hash(digest)], before, [*tokens], self._block_size, None, _MEDIUM, adapter, extra_keys=keys
            )
            self._changes.append(stored)
        self._last = digest

    def removed(self, digest: bytes) -> None:
        """Record that a block lost its hash; ignored if no event has reported the block as stored."""
        if digest not in self._reported:
            return
        self._reported.remove(digest)
        last = self._changes[-1] if self._changes else None
        if isinstance(last, BlockRemoved):
            last.block_hashes.append(_hash(digest))
        else:
            self._changes.append(BlockRemoved([_hash(digest)], _MEDIUM))

    def cleared(self) -> None:
        """All blocks lost their hashes."""
        self._reported.clear()
        self._changes = [AllBlocksCleared()]

    def take(self) -> list[Change]:
        """The changes since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes


def _hash(digest: bytes) -> int:
    """The name of a block for listeners: they may mistake one for another, which only sends a request astray."""
    return int.from_bytes(digest[:8], "big")
