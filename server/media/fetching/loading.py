"""Loads the media of parts: in the request, on another host, or among the caller's own files."""

import contextlib
import mimetypes
from functools import partial

from stentor.protocols.common.errors import BadRequest, refused

from ...storage import files
from ...storage.database import Database, StoreFailed
from ..parts import Media, MediaPart
from ..refusal import TOO_LARGE
from .fetcher import Fetcher


class MediaLoader:
    """One is enough for a server, on its event loop."""

    def __init__(self, fetcher: Fetcher, store: Database, max_bytes: int) -> None:
        """``max_bytes``: of one stored file, as of one that is fetched."""
        self._fetcher = fetcher
        self._store = store
        self._max_bytes = max_bytes

    async def load(self, part: MediaPart, owner: str) -> Media:
        """Raises BadRequest naming the part's field, also for a ``uuid`` alone, which is not enough here; and as
        :meth:`.fetcher.Fetcher.fetch`."""
        if not part.url and not part.file:
            why = f"nothing is kept here under the `uuid` {part.uuid[:80]!r} any more; send it whole"
            raise refused(part.param, why, "media_not_found")
        return await self.named(part.url, part.file, part.param, owner)

    async def named(self, url: str, file: str, param: str, owner: str) -> Media:
        """The media at ``url``, or the caller's own stored file of this id."""
        return await self._fetcher.fetch(url, param) if url else await self._stored(file, param, owner)

    async def _stored(self, name: str, param: str, owner: str) -> Media:
        found = await self._store.read(partial(files.find, owner=owner, file=name))
        if found is None:
            raise BadRequest(f"`{param}`: there is no file `{name[:80]}`.", param, "file_not_found", 404)
        if found.size > self._max_bytes:
            most = f"this server takes at most {self._max_bytes} for a model"
            raise BadRequest(f"`{param}`: the file has {found.size} bytes; {most}.", param, TOO_LARGE)
        with contextlib.suppress(StoreFailed):  # a full disk can still be read
            await self._store.write(lambda db: files.touch(db, name))
        data = bytearray()
        place = 0
        while piece := await self._store.read(partial(files.part, file=name, place=place)):
            data += piece
            place += 1
        if len(data) < found.size:  # its owner deletes it meanwhile
            raise BadRequest(f"`{param}`: there is no file `{name[:80]}`.", param, "file_not_found", 404)
        return Media(bytes(data), mimetypes.guess_type(found.name)[0])
