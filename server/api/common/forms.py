"""A form with a file, within its bounds while it comes in."""

import contextlib
import logging
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

import anyio
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive

from stentor.protocols.common.errors import BadRequest
from stentor.protocols.common.limits import Limits

from ...overload.memory_budget import MemoryShare
from ...storage.database import DiskFull, StoreFailed, is_disk_full

logger = logging.getLogger(__name__)

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns about clients' input

FORM_BYTES: Final = 64 << 10
"""Bytes of an upload beside the file."""
_TOO_LONG: Final = "exceeded maximum size"
"""In starlette's message for a field beyond ``FORM_BYTES``."""


@contextlib.asynccontextmanager
async def upload_form(
    limits: Limits,
    request: Request,
    share: MemoryShare,
    max_file_bytes: int,
    max_fields: int,
    wanted: str,
    field: str = "file",
) -> AsyncIterator[FormData]:
    """The form of ``request``, counted in ``share`` and released at the end. The file is in ``field``.

    Raises BadRequest for a body that is no form (``wanted`` names the required contents), exceeds ``max_file_bytes`` by
    more than a little, or is slower than other bodies may be; :class:`...overload.memory_budget.MemoryFull`; and
    DiskFull if the disk has no room for a large file.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise BadRequest(f"A file is brought as multipart/form-data, with {wanted}.", field)
    most = max_file_bytes + FORM_BYTES
    # at the rate at which other bodies must come
    seconds = limits.body_timeout * max(1.0, most / limits.max_body_bytes)
    bounded = Request(request.scope, _bounded(request.receive, most, share, field))
    try:
        with anyio.fail_after(seconds):
            form = await bounded.form(max_files=1, max_fields=max_fields, max_part_size=FORM_BYTES)
    except HTTPException as error:
        raise BadRequest(f"The form cannot be read: {_told(error.detail, field)}", field) from None
    except UnicodeError:
        raise BadRequest("The form cannot be read: its names are no text in its charset; use UTF-8.", field) from None
    except TimeoutError:
        raise BadRequest(
            f"The form did not come in whole within {seconds:g} seconds.",
            field,
            "request_timeout",
            HTTPStatus.REQUEST_TIMEOUT,
        ) from None
    except OSError as error:
        if is_disk_full(error):
            logger.warning("an upload was refused: the disk of the temporary files is full")
            raise DiskFull from None
        logger.error("an upload was refused: temporary files cannot be written: %s", error.strerror)
        raise StoreFailed(
            "The server cannot write the temporary file that an upload of this size needs; its log says why."
        ) from None
    try:
        yield form
    finally:
        await form.close()


def _told(why: str, field: str) -> str:
    """What starlette says of a form, or for a long field, whose name it does not say, what to do instead."""
    if _TOO_LONG not in why:
        return why
    return f"a text field has more than {FORM_BYTES >> 10} KiB. Send data as a file, with a name, in `{field}`."


def too_large(most: int, field: str = "file") -> BadRequest:
    """The error for a file of more than ``most`` bytes."""
    return BadRequest(
        f"The file is larger than the {most} bytes that this server keeps of one.", field, "file_too_large", status=413
    )


def _bounded(receive: Receive, most: int, share: MemoryShare, field: str) -> Receive:
    """Receives like ``receive``, counts bodies in ``share``, and raises :func:`too_large` beyond ``most`` bytes."""

    async def bounded() -> Message:
        message = await receive()
        if share.add(len(message.get("body", b""))) > most:
            raise too_large(most - FORM_BYTES, field)
        return message

    return bounded
