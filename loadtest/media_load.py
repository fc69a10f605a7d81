"""``stentor bench media``: pictures beside running streams, a picture's second question, files that are refused.

    stentor bench media --save media.json
    stentor bench media --model HuggingFaceTB/SmolVLM-256M-Instruct --only streams --pictures 64 -- --dtype float32
    stentor bench media --only hostile

A real server is asked over HTTP. *streams*: that many answers run, one after another in each lane, first alone and then
while different pictures, sent at once, are encoded; what counts are the gaps between two tokens. *cached*: questions
about a picture that has been asked about before, and in turn with them as long questions about a text whose tokens are
in the prefix cache, with the same number of tokens. *hostile*: files that lie about themselves, or would cost a reader
much, are sent beside one stream, one after another: made up, or those of a folder. Without a model one of
SmolVLM-256M's sizes is made, with weights that are drawn.
"""

import argparse
import asyncio
import base64
import io
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import numpy as np
from PIL import Image
from rich.console import Console

from . import hostile_files
from .client import STREAMED, StreamError, complete
from .processes import cpu_seconds, named, pss_bytes, tree
from .record import Record, Spread
from .recovery import Load
from .seeing_model import write_seeing_model
from .server_process import HOST, ServerProcess
from .serving.measure import spread
from .tool import ToolError, UsageError, at_least, make_parser, run_tool, table

NAME: Final = "seen"
_CHAT: Final = "/v1/chat/completions"
_TOKENS: Final = 400
"""Of one answer of a lane."""
_SIDE: Final = 512
_SETTLE_SECONDS: Final = 3.0
_POST_SECONDS: Final = 5
"""After which a file is taken for one that is not refused."""
_PROCESSES: Final = ("stentor-worker", "stentor-engine", "stentor-media", "stentor")

T = TypeVar("T")


@dataclass(frozen=True)
class BesidePictures:
    streams: int
    pictures: int
    alone: Spread
    """Of the gaps between two moments at which a stream had tokens, as ``beside``."""
    beside: Spread
    seconds: float
    """From when the pictures were sent to the last answer, or to when no more of them were waited for."""
    first_answer: float
    """Of the pictures."""
    cpu_seconds: Mapping[str, float]
    """By process, meanwhile."""
    answered: int
    """Of the pictures."""

    @property
    def ratio(self) -> float:
        """Of the p99 beside pictures to that of the streams alone."""
        return self.beside.p99 / self.alone.p99


@dataclass(frozen=True)
class CachedPicture:
    """Medians of times to the first token, in seconds."""

    rounds: int
    prompt_tokens: int
    first: float
    """Of a picture that is not in the cache."""
    picture: float
    text: float
    ratio: float
    """The median of both in one round."""
    detail: str = "low"
    """Of the pictures: ``low`` is one tile."""


@dataclass(frozen=True)
class BesideHostile:
    files: int
    refused: int
    """With a status of 400 to 499."""
    longest: float
    """Seconds to an answer."""
    slowest: str
    """Which file that was."""
    alone: Spread
    beside: Spread
    bytes_before: int
    """Of all processes, in proportion where they share pages."""
    bytes_after: int


class MediaLoad(Record, frozen=True, kw_only=True, tag="media"):
    model: str
    streams: BesidePictures | None = None
    cached: CachedPicture | None = None
    hostile: BesideHostile | None = None


# ---- pictures


def picture(number: int, side: int = _SIDE) -> bytes:
    """A JPEG like no other number's: smooth, with some noise, as photographs are."""

    draw = np.random.default_rng(number)
    coarse = Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    noisy = np.clip(np.asarray(coarse, np.int16) + draw.integers(-8, 9, (side, side, 3)), 0, 255)
    out = io.BytesIO()
    Image.fromarray(noisy.astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def data_url(data: bytes, kind: str = "image/jpeg") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def asked(content: object, tokens: int) -> dict[str, Any]:
    """A chat request."""
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def looking(data: bytes, question: str, detail: str = "low") -> list[dict[str, Any]]:
    """A picture, of which ``low`` is one tile, and a text behind it."""
    image = {"type": "image_url", "image_url": {"url": data_url(data), "detail": detail}}
    return [image, {"type": "text", "text": question}]


# ---- what is measured


async def beside_pictures(
    server: ServerProcess, streams: int, pictures: int, seconds: float, most: float | None = None
) -> BesidePictures:
    """``seconds``: for which the streams run alone first; ``most``: for which answers are waited for, None: until all
    are there. Raises StreamError where a picture has no answer, and ToolError where none has one in time."""
    made = [looking(picture(number), f"What is in picture {number}?") for number in range(pictures)]
    # the media process and the model have been used once
    await complete(server.port, {**STREAMED, **asked(looking(picture(-1 & 0xFFFF), "?"), 4)}, _CHAT)

    async def run(load: Load) -> BesidePictures:
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        sent = time.perf_counter()
        before = _cpu_seconds(server.pid)
        bodies = [{**STREAMED, **asked(content, 8)} for content in made]
        asking = [asyncio.create_task(complete(server.port, body, _CHAT)) for body in bodies]
        done, waiting = await asyncio.wait(asking, timeout=most)
        ended = time.perf_counter()
        spent = {name: cpu - before.get(name, 0.0) for name, cpu in _cpu_seconds(server.pid).items()}
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if not done:
            raise ToolError(f"none of {pictures} pictures was answered within {ended - sent:.0f} s")
        first = min(each.result().arrivals[0] for each in done) - sent
        alone, beside = gaps(load.streams, began, sent), gaps(load.streams, sent, ended)
        return BesidePictures(streams, pictures, alone, beside, ended - sent, first, spent, len(done))

    return await _beside(server, streams, run)


async def cached_picture(server: ServerProcess, rounds: int, pictures: int = 0, detail: str = "low") -> CachedPicture:
    """Each round asks about a picture and a text that have been asked about before, in an order that changes: each
    about one of its own, or with ``pictures`` about one of so many."""
    port, draw = server.port, random.Random(0)
    # what the chat template of a model makes of both is told apart by trying
    words = "".join(draw.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(4096))
    length, seen = 64, 0
    for _ in range(8):
        seen = (await _ask(port, looking(picture(10**6), "Which one is it?", detail))).prompt_tokens
        found = (await _ask(port, f"{words[:length]}Which one is it?")).prompt_tokens
        if found == seen:
            break
        length = max(1, length + seen - found)
    firsts, pairs = [], []
    own = pictures or rounds
    for number in range(rounds):
        data, text = picture(2 * 10**6 + number % own), f"{number % own:06}{words[6:length]}"
        questions: dict[str, Callable[[str], object]] = {
            "picture": lambda question, data=data: looking(data, question, detail),  # type: ignore[misc]
            "text": lambda question, text=text: text + question,  # type: ignore[misc]
        }
        times: dict[str, float] = {}
        for kind, content in questions.items() if number < own else ():
            first = await _ask(port, content("Which one is it?"))
            if kind == "picture":
                firsts.append(first.ttft)
        for kind in sorted(questions, reverse=bool(number % 2)):
            times[kind] = (await _ask(port, questions[kind](f"Where has it been, {number:03}"))).ttft
        pairs.append((times["picture"], times["text"]))
    return CachedPicture(
        rounds,
        seen,
        statistics.median(firsts),
        statistics.median(picture for picture, _ in pairs),
        statistics.median(text for _, text in pairs),
        statistics.median(picture / text for picture, text in pairs),
        detail,
    )


async def beside_hostile(server: ServerProcess, files: Mapping[str, bytes], seconds: float) -> BesideHostile:
    """``files`` by name; those of the kinds ``video`` and ``audio`` have names that begin so. As what the model does
    not take a file would be refused unread: it is sent as an image."""

    each_its_own = httpx.Limits(max_keepalive_connections=0)
    client = httpx.AsyncClient(
        base_url=f"http://{HOST}:{server.port}", timeout=_POST_SECONDS, limits=each_its_own, trust_env=False
    )

    async def run(load: Load) -> BesideHostile:
        cards = (await client.get("/v1/models", timeout=60)).json()["data"]
        takes: list[str] = next((card["input_modalities"] for card in cards if card["id"] == NAME), [])
        # the media process has been used once
        await client.post(_CHAT, json=asked(looking(picture(1), "?"), 1), timeout=300)
        await asyncio.sleep(_SETTLE_SECONDS)
        held = sum(map(pss_bytes, tree(server.pid)))
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        sent = time.perf_counter()
        found = []
        for name, data in files.items():
            at = time.perf_counter()
            try:
                content = [_part(name, data, takes), {"type": "text", "text": "?"}]
                status = (await client.post(_CHAT, json=asked(content, 1))).status_code
            except httpx.TimeoutException:
                status = 0  # it is not refused: the picture is encoded beside the stream
            found.append((time.perf_counter() - at, name, status))
        ended = time.perf_counter()
        await asyncio.sleep(_SETTLE_SECONDS)
        refused = [(took, name) for took, name, status in found if 400 <= status < 500]
        longest, slowest = max(refused, default=(0.0, "none"))
        return BesideHostile(
            len(found),
            len(refused),
            longest,
            slowest,
            gaps(load.streams, began, sent),
            gaps(load.streams, sent, ended),
            held,
            sum(map(pss_bytes, tree(server.pid))),
        )

    async with client:
        return await _beside(server, 1, run)


async def _beside(server: ServerProcess, streams: int, run: Callable[[Load], Awaitable[T]]) -> T:
    """``run`` while so many streams flow. Raises StreamError where one of them is lost."""
    load = Load(server.port, _TOKENS, NAME)
    async with load.lanes(streams):
        await load.flows_since(0.0)
        found = await run(load)
    if load.failures:
        raise StreamError(f"{len(load.failures)} streams were lost; the first: {load.failures[0]}")
    return found


def gaps(streams: Sequence[Sequence[float]], since: float, until: float) -> Spread:
    """Of all that end in [since, until); tokens that one read brought count as one."""
    found = [
        after - before
        for arrivals in streams
        for before, after in itertools.pairwise(sorted(set(arrivals)))
        if since <= after < until
    ]
    if not found:
        raise ToolError(f"no stream had tokens within {until - since:.1f} s")
    return spread(found)


async def _ask(port: int, content: object) -> Any:
    return await complete(port, {**STREAMED, **asked(content, 2)}, _CHAT)


def _part(name: str, data: bytes, takes: Sequence[str]) -> dict[str, Any]:
    kind = next((kind for kind in ("video", "audio") if name.startswith(kind) and kind in takes), "image")
    return {"type": f"{kind}_url", f"{kind}_url": {"url": data_url(data, f"{kind}/x-unknown")}}


def _cpu_seconds(pid: int) -> dict[str, float]:
    """By the name of a process."""
    return {name: sum(map(cpu_seconds, named(pid, name))) for name in _PROCESSES}


# ---- the command


def main(argv: list[str]) -> int:
    parser = make_parser("media", __doc__, epilog="What follows -- goes to `stentor serve` as it is.")
    number = at_least(1)
    parser.add_argument("--model", help="as of `stentor serve`; made up unless given")
    parser.add_argument("--only", nargs="+", choices=("streams", "cached", "hostile"), help="not all that there is")
    parser.add_argument("--streams", type=number, default=8, metavar="N", help="that run (8)")
    parser.add_argument("--pictures", type=number, default=64, metavar="N", help="that are sent at once (64)")
    parser.add_argument(
        "--most", type=number, metavar="SECONDS", help="that answers are waited for (until all are there)"
    )
    parser.add_argument("--seconds", type=number, default=20, metavar="N", help="of streams alone (20)")
    parser.add_argument("--rounds", type=number, default=20, metavar="N", help="of second questions (20)")
    parser.add_argument(
        "--asked", type=number, default=0, metavar="N", help="pictures of second questions (one for each)"
    )
    parser.add_argument("--detail", choices=("low", "high"), default="low", help="of these: one tile, or all (low)")
    parser.add_argument(
        "--files", type=Path, metavar="FOLDER", help="files that are to be refused; made up unless given"
    )
    parser.add_argument("serve", nargs="*", metavar="OPTION", help="for `stentor serve`, after --")
    return run_tool(parser, argv, _measure, show, StreamError)


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> MediaLoad:
    wanted = arguments.only or ["streams", "cached", "hostile"]
    if arguments.files is None:
        files = {f"image: {name}": data for name, data in hostile_files.IMAGES.items()}
        files |= {f"video: {name}": data for name, data in hostile_files.VIDEOS.items()}
    elif arguments.files.is_dir():
        files = {file.name: file.read_bytes() for file in sorted(arguments.files.iterdir())}
    else:
        raise UsageError(f"--files {arguments.files}: expected a folder with files in it")
    streams = cached = hostile = None
    with ExitStack() as stack:
        model = arguments.model
        options = [*arguments.serve]
        if model is None:
            model = stack.enter_context(tempfile.TemporaryDirectory())
            write_seeing_model(Path(model))
            options = ["--load-format", "dummy", *options]
        server = stack.enter_context(ServerProcess([model, "--served-model-name", NAME, *options]))
        if "streams" in wanted:
            streams = asyncio.run(
                beside_pictures(server, arguments.streams, arguments.pictures, arguments.seconds, arguments.most)
            )
        if "cached" in wanted:
            cached = asyncio.run(cached_picture(server, arguments.rounds, arguments.asked, arguments.detail))
        if "hostile" in wanted:
            hostile = asyncio.run(beside_hostile(server, files, arguments.seconds))
    name = arguments.model or "made up, of SmolVLM-256M's sizes"
    return MediaLoad(model=name, streams=streams, cached=cached, hostile=hostile, **about)


def show(console: Console, record: MediaLoad) -> None:
    columns = ("streams", "gaps", "median ms", "p99 ms", "largest ms")
    for found in (record.streams, record.hostile):
        if found is None:
            continue
        rows = [
            [name, f"{each.count:,}", *(f"{figure:.1f}" for figure in (each.p50, each.p99, each.max))]
            for name, each in (("alone", found.alone), ("beside", found.beside))
        ]
        if isinstance(found, BesidePictures):
            title = (
                f"{found.streams} streams beside {found.pictures} pictures, of which "
                f"{found.answered} were answered within {found.seconds:.1f} s: p99 {found.ratio:.2f} times its own"
            )
        else:
            title = (
                f"{found.refused} of {found.files} files refused beside a stream, each within {found.longest:.2f} s "
                f"({found.slowest}); {found.bytes_before / 2**20:,.0f} MiB before and "
                f"{found.bytes_after / 2**20:,.0f} after"
            )
        console.print(table(columns, rows, title=title))
    if record.streams is not None:
        spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in record.streams.cpu_seconds.items())
        console.print(f"CPU seconds meanwhile: {spent}")
    if record.cached is not None:
        each = record.cached
        row = [f"{each.prompt_tokens}", *(f"{1e3 * figure:.1f}" for figure in (each.first, each.picture, each.text))]
        columns = ("prompt tokens", "first question ms", "second ms", "of a text ms", "ratio")
        title = f"time to first token of {each.rounds} pictures and texts"
        console.print(table(columns, [[*row, f"{each.ratio:.2f}"]], left=0, title=title))
