"""``stentor bench vision-serving``: pictures of one random model, our server's, llama.cpp's and transformers', in turn.

    stentor bench vision-serving --rounds 3 --at-once 4 --save vision.json

The model is as large as SmolVLM-256M, with made-up weights. ``stentor`` and ``llama.cpp`` serve the same two files, a
text model in Q8_0 and a projector file (mmproj); ``stentor-bf16`` and ``transformers`` compute a checkpoint in
bfloat16. Both servers are asked over HTTP; transformers has no server around it: its processor and ``generate`` are
called in a process of their own, with several pictures as one batch. In each round each side gets the same pictures,
one by itself and then several at once, each another one, and tells a few words of it. Pictures are of one tile; what
each counts as tokens of a prompt is shown. CPU time is the side's own: where others compute too, which is told, a
steadier figure than the time.
"""

import argparse
import asyncio
import base64
import io
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console

from stentor.engine.loading.download.hub import DEFAULT_MODEL, resolve_model
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.gguf.file import GGUFFile

from .client import STREAMED, Answer, StreamError, complete, seconds_of
from .peers.figures import Measure, Round, SidesRecord, medians
from .peers.measuring import Entry, entry_of, fail, interrupted_by_sigterm, show_sides, take_turns
from .peers.places import llama_binary
from .peers.random_mmproj import write_random_mmproj
from .peers.random_models import RandomModel
from .peers.random_weights import write_random_gguf
from .peers.running import Server, ServerError
from .peers.seeing_library import TRANSFORMERS, Library
from .peers.sides import MODEL, SIDES, Launch, Room, Side
from .peers.weights import WeightsError
from .seeing_model import write_seeing_model
from .series import CONFIGS
from .tool import ToolError, UsageError, at_least, make_parser, run_tool

FOLDER: Final = "smolvlm-256m"
_FIRST_SPECIAL: Final = 49152
"""Where the vocabulary of the model's own special tokens begins."""
_IMAGE: Final = 49190
_SPECIAL: Final[Mapping[int, str]] = {
    _FIRST_SPECIAL: "<global-img>",
    **{
        _FIRST_SPECIAL + 1 + 6 * row + column: f"<row_{row + 1}_col_{column + 1}>"
        for row in range(6)
        for column in range(6)
    },
    _IMAGE - 1: "<fake_token_around_image>",
    _IMAGE: "<image>",
    _IMAGE + 1: "<end_of_utterance>",
}
TEXT: Final = RandomModel("SmolVLM-256M's text", FOLDER, part="text_config", tokens=_SPECIAL)
_SAID: Final = "Ġthe"
"""The one word that is said: that of random weights might have no text."""
_BYTE: Final = 64
"""The same of the checkpoint, whose tokens are bytes: an "a"."""
_ASKED: Final = "What is this?"
_SIDE: Final = 512
"""Pixels of a picture's side: one tile."""
_PROJECTOR: Final = "mmproj.gguf"
_PATH: Final = "/v1/chat/completions"
_SECONDS: Final = 60.0
"""For each picture of a round: llama.cpp may take 20 on two cores."""
_MADE_UP: Final = ("--load-format", "dummy")


class VisionServing(SidesRecord, frozen=True, kw_only=True, tag="vision-serving"):
    at_once: int
    output_tokens: int


def shapes_of(at_once: int) -> tuple[str, str]:
    return "1 picture", f"{at_once} pictures"


def measures(at_once: int) -> list[Measure]:
    """The table's rows: one picture by itself, then several, of which each has other pixels."""
    one, several = shapes_of(at_once)
    return [
        Measure(one, "ttft_s", "alone: TTFT s", digits=2),
        Measure(one, "decode_tokens_per_s", "alone: tokens/s behind the first", True, 1),
        Measure(several, "pictures_per_s", f"{several} at once: pictures/s", True, 3),
        Measure(several, "ttft_s", f"{several} at once: TTFT s", digits=2),
        Measure(several, "cpu_s", f"{several} at once: the side's CPU s for each", digits=2),
        Measure(one, "prompt_tokens", "tokens of a prompt"),
    ]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, show, CheckpointError, WeightsError, ServerError, StreamError)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vision-serving", __doc__)
    parser.add_argument("--only", help=f"sides with commas (default: {','.join(_SIDES)})")
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="measured rounds after one to warm up (default: 3)"
    )
    parser.add_argument("--at-once", type=at_least(1), default=4, metavar="N", help="pictures at once (default: 4)")
    parser.add_argument("--output-tokens", type=at_least(2), default=8, metavar="N", help="tokens out (default: 8)")
    return parser


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> VisionServing:
    names = arguments.only.split(",") if arguments.only else list(_SIDES)
    chosen = [side_of(name) for name in names]  # one that there is not is told before anything is written
    say = partial(print, file=sys.stderr)
    with interrupted_by_sigterm(), ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="vision-serving-")))
        text, checkpoint = folder / "text.gguf", folder / "checkpoint"
        write_seeing_model(checkpoint, tiles=1)
        words = {"q8_0": 0, "bf16": _BYTE}
        if any(side.bits == "q8_0" for side in chosen):
            words["q8_0"] = _write(json.loads((CONFIGS / FOLDER / "config.json").read_text(encoding="utf-8")), text)
        entries = [_entry(side, text if side.bits == "q8_0" else checkpoint, arguments.at_once) for side in chosen]
        for entry in entries:
            stack.callback(entry.server.stop)
            say(f"{entry.column.name}: starting")
            try:
                _start(entry.server, words)
            except ServerError as error:
                fail(entry, error)
        ask = partial(_ask, words, arguments.at_once, arguments.output_tokens)
        take_turns(entries, shapes_of(arguments.at_once), arguments.rounds, ask, say)
    columns = [entry.column for entry in entries]
    return VisionServing(
        model=TEXT.folder,
        columns=columns,
        skipped={},
        medians=medians(columns, measures(arguments.at_once)),
        at_once=arguments.at_once,
        output_tokens=arguments.output_tokens,
        **about,
    )


def _write(config: Mapping[str, Any], text: Path) -> int:
    """Both files; the id of the word that is said."""
    vocabulary = resolve_model(DEFAULT_MODEL)
    write_random_gguf(TEXT, "q8_0", vocabulary, text)
    write_random_mmproj(config, _SIDE, text.with_name(_PROJECTOR))
    with GGUFFile(text) as file:
        tokens = file.metadata["tokenizer.ggml.tokens"]
    if not isinstance(tokens, list) or _SAID not in tokens:
        raise ToolError(f"the vocabulary of {vocabulary} has no token {_SAID}")
    return tokens.index(_SAID)


_SIDES: Final[Mapping[str, Side]] = {
    "stentor": SIDES["stentor-q8_0"],
    "llama.cpp": SIDES["llama.cpp-q8_0"],
    "stentor-bf16": SIDES["stentor-bf16"],
    "transformers": TRANSFORMERS,
}


def side_of(name: str) -> Side:
    """One that is given the projector file beside its weights, or draws weights for a checkpoint. Raises
    :class:`UsageError` and :class:`ToolError`."""
    if name not in _SIDES:
        raise UsageError(f"no side is called {name!r}; expected {', '.join(_SIDES)}")
    side = _SIDES[name]
    if side is TRANSFORMERS:
        return side
    if side.missing is not None and not llama_binary("llama-server").is_file():
        raise ToolError(side.missing)

    def launch(weights: Path, port: int, room: Room) -> Launch:
        own = side.launch(weights, port, room)
        of_files = ["--mmproj", str(weights.with_name(_PROJECTOR))]
        return Launch([*own.command, *(of_files if side.bits == "q8_0" else _MADE_UP)], own.environment)

    return side._replace(name=name, launch=launch)


def _entry(side: Side, weights: Path, at_once: int) -> Entry:
    entry = entry_of(side, weights, Room(at_once))
    if side is TRANSFORMERS:
        entry.server = Library(weights)
        entry.column.version = ", ".join(f"{each} {version(each)}" for each in ("transformers", "torch"))
    return entry


def _start(server: Server, words: Mapping[str, int]) -> None:
    """Until the first word has come. Raises :class:`ServerError`."""
    if isinstance(server, Library):
        server.begin(png(0), _ASKED)
    else:
        server.start_with(request(png(0), words[server.side.bits], 1), _PATH)


def png(seed: int, side: int = _SIDE) -> bytes:
    """A picture of soft blots, each seed's another one."""
    import numpy as np
    from PIL import Image

    blots = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    drawn = io.BytesIO()
    Image.fromarray(blots).resize((side, side), Image.Resampling.BICUBIC).save(drawn, "PNG")
    return drawn.getvalue()


def request(picture: bytes, word: int, tokens: int) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": _ASKED}]
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
        "logit_bias": {str(word): 100},
        **STREAMED,
    }


def _ask(words: Mapping[str, int], at_once: int, tokens: int, server: Server, shape: str, number: int) -> Round:
    seeds = random.Random(number).sample(range(1, 1 << 30), 1 + at_once)
    alone = shape == shapes_of(at_once)[0]
    pictures = [png(seed) for seed in (seeds[:1] if alone else seeds[1:])]
    before = server.cpu()
    if isinstance(server, Library):
        seen = server.ask(pictures, _ASKED, tokens)
        found = {"ttft_s": seen.ttft, "pictures_per_s": len(pictures) / seen.seconds}
        found |= {"decode_tokens_per_s": (seen.tokens - 1) / (seen.seconds - seen.ttft)}
        found |= {"prompt_tokens": seen.prompt_tokens}
    else:
        found = _over_http(server.port, [request(picture, words[server.side.bits], tokens) for picture in pictures])
    return {**found, "cpu_s": (server.cpu() - before) / len(pictures)}


def _over_http(port: int, bodies: Sequence[Mapping[str, Any]]) -> Round:
    async def load() -> list[Answer]:
        return await asyncio.gather(*(complete(port, body, _PATH) for body in bodies))

    limit = _SECONDS * len(bodies)
    try:
        answers = asyncio.run(asyncio.wait_for(load(), limit))
    except TimeoutError:
        raise StreamError(f"it gave no answers to {len(bodies)} at once within {limit:.0f} s") from None
    rates = [(answer.tokens - 1) / (answer.ended - answer.arrivals[0]) for answer in answers if answer.gaps]
    found = {
        "ttft_s": statistics.median(answer.ttft for answer in answers),
        "pictures_per_s": len(answers) / seconds_of(answers),
        "prompt_tokens": float(answers[0].prompt_tokens),
    }
    return {**found, "decode_tokens_per_s": statistics.median(rates)} if rates else found


def show(console: Console, record: VisionServing) -> int:
    title = (
        f"{record.model} with random weights, pictures of {_SIDE} pixels, medians of the rounds; text in Q8_0 and "
        "tower in F16, or both in bfloat16; transformers has no server around it"
    )
    return show_sides(title, record, measures(record.at_once))
