"""Reads a batch's input file in parts: first checked as a whole, then line by line."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
from anyio.lowlevel import checkpoint

from stentor.protocols.common.decoding import too_many_values
from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.batches import MAX_ERRORS, MAX_REQUESTS, BatchError

from ..storage import files
from ..storage.database import Database
from .lines import BadLine, BatchRequest, read_request

MAX_LINE_BYTES: Final = 16 << 20
MAX_ID_CHARS: Final = 512
"""Characters of a ``custom_id``: those of all lines are in memory while a file is checked."""

ReadPart = Callable[[int], Awaitable[bytes | None]]


def part_reader(store: Database, file: str) -> ReadPart:
    async def read(place: int) -> bytes | None:
        return await store.read(partial(files.part, file=file, place=place))

    return read


async def lines(read: ReadPart, most: int = MAX_LINE_BYTES) -> AsyncGenerator[tuple[int, bytes], None]:
    """(number from 1, line) of every line that is not blank. Raises BadLine for one that is longer than ``most``."""
    number, place = 0, 0
    waiting = bytearray()
    while True:
        part = await read(place)
        place += 1
        if part is None:
            break
        waiting += part
        *whole, rest = waiting.split(b"\n")
        for line in whole:
            number += 1
            if line.strip():
                yield number, bytes(line)
        waiting = rest
        if len(waiting) > most:
            raise BadLine(f"line {number + 1} is longer than {most >> 20} MiB")
    if waiting.strip():
        yield number + 1, bytes(waiting)


class Checked(msgspec.Struct):
    total: int = 0
    errors: list[BatchError] = []
    model: str | None = None
    """The first request's model."""


async def check(read: ReadPart, endpoint: str, limits: Limits) -> Checked:
    """Whether every line is a request to ``endpoint`` with a name of its own."""
    found = Checked()
    names: set[str] = set()

    def wrong(code: str, message: str, line: int | None) -> None:
        if len(found.errors) < MAX_ERRORS:
            found.errors.append(BatchError(code, message, line))

    try:
        async for number, line in lines(read):
            await checkpoint()  # a part has many lines, and each may take its time
            found.total += 1
            if found.total > MAX_REQUESTS:
                wrong("too_many_requests", f"The file has more than {MAX_REQUESTS} requests; cut it.", number)
                break
            if too_many_values(line, limits):  # which the endpoint would refuse, too; nothing goes on while it is read
                wrong("invalid_json_line", f"line {number}: it holds too many values", number)
                continue
            try:
                request = read_request(line, number)
            except BadLine as error:
                wrong("invalid_json_line", str(error), number)
                continue
            if request.url != endpoint:
                message = f"line {number}: url is {request.url[:80]!r}, but the batch is for {endpoint}"
                wrong("mismatched_url", message, number)
            if len(request.custom_id) > MAX_ID_CHARS:
                message = f"line {number}: custom_id is longer than {MAX_ID_CHARS} characters"
                wrong("invalid_custom_id", message, number)
                continue
            if request.custom_id in names:
                message = f"line {number}: custom_id {request.custom_id[:80]!r} stands in an earlier line"
                wrong("duplicate_custom_id", message, number)
            names.add(request.custom_id)
            if found.model is None and isinstance(request.body.get("model"), str):
                found.model = request.body["model"]
    except BadLine as error:
        wrong("invalid_json_line", str(error), None)
    if not found.total and not found.errors:
        wrong("empty_file", "The file has no requests.", None)
    return found


async def requests(read: ReadPart, wanted: Callable[[int], bool]) -> AsyncGenerator[tuple[int, BatchRequest], None]:
    """Requests of a checked file whose lines are ``wanted``; fewer if the file is deleted meanwhile."""
    async for number, line in lines(read):
        if not wanted(number):
            continue
        try:
            request = read_request(line, number)
        except BadLine:  # torn: it was whole when it was checked
            return
        yield number, request
