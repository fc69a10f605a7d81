"""``stentor bench vision-serving``: pictures over HTTP of one random model, our server's and llama.cpp's, in turn.

    stentor bench vision-serving --rounds 3 --at-once 4 --save vision.json

The model is as large as SmolVLM-256M: a text model in Q8_0 and a projector file (mmproj), both made up and the same for
both servers, which stay up. In each round each gets the same pictures, one by itself and then several at once, each
another one, and tells a few words of it. Pictures are of one tile; what both count as tokens of a prompt is shown side
by side. CPU time is the servers' own: where others compute too, which is told, a steadier figure than the time.
"""

import argparse
import asyncio
import base64
import io
import json
import random
import statistics
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.gguf_file import GGUFFile
from stentor.engine.loading.hub import DEFAULT_MODEL, resolve_model

from .client import STREAMED, Answer, StreamError, complete, seconds_of
from .peers.figures import Measure, Round, SidesRecord, medians
from .peers.measuring import entry_of, interrupted_by_sigterm, show_sides, take_turns
from .peers.places import llama_binary
from .peers.random_mmproj import write_random_mmproj
from .peers.random_models import RandomModel
from .peers.random_weights import write_random_gguf
from .peers.running import Server, ServerError
from .peers.sides import MODEL, SIDES, Launch, Side
from .peers.weights import WeightsError
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
_SIDE: Final = 512
"""Pixels of a picture's side: one tile."""
_PROJECTOR: Final = "mmproj.gguf"
_PATH: Final = "/v1/chat/completions"


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
        Measure(several, "pictures_per_s", f"{several} at once: pictures/s", True, 3),
        Measure(several, "ttft_s", f"{several} at once: TTFT s", digits=2),
        Measure(several, "cpu_s", f"{several} at once: the server's CPU s for each", digits=2),
        Measure(one, "prompt_tokens", "tokens of a prompt"),
    ]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, show, CheckpointError, WeightsError, ServerError, StreamError)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("vision-serving", __doc__)
    parser.add_argument("--only", help="sides with commas: stentor, llama.cpp (default: both)")
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="measured rounds after one to warm up (default: 3)"
    )
    parser.add_argument("--at-once", type=at_least(1), default=4, metavar="N", help="pictures at once (default: 4)")
    parser.add_argument("--output-tokens", type=at_least(1), default=8, metavar="N", help="tokens out (default: 8)")
    return parser


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> VisionServing:
    names = (arguments.only or "stentor,llama.cpp").split(",")
    chosen = [side_of(name) for name in names]  # one that there is not is told before anything is written
    with interrupted_by_sigterm(), ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="vision-serving-")))
        config = json.loads((CONFIGS / FOLDER / "config.json").read_text(encoding="utf-8"))
        text = folder / "text.gguf"
        word = _write(config, text)
        entries = [entry_of(side, text, arguments.at_once) for side in chosen]
        for entry in entries:
            stack.callback(entry.server.stop)
            entry.server.start_with(request(png(0), word, 1), _PATH)
        ask = partial(_ask, word, arguments.at_once, arguments.output_tokens)
        take_turns(entries, shapes_of(arguments.at_once), arguments.rounds, ask, partial(print, file=sys.stderr))
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


def side_of(name: str) -> Side:
    """One that is given the projector file beside its weights. Raises :class:`UsageError` and :class:`ToolError`."""
    known = {"stentor": "stentor-q8_0", "llama.cpp": "llama.cpp-q8_0"}
    if name not in known:
        raise UsageError(f"no side is called {name!r}; expected {', '.join(known)}")
    side = SIDES[known[name]]
    if side.missing is not None and not llama_binary("llama-server").is_file():
        raise ToolError(side.missing)

    def launch(weights: Path, port: int, slots: int) -> Launch:
        own = side.launch(weights, port, slots)
        return Launch([*own.command, "--mmproj", str(weights.with_name(_PROJECTOR))], own.environment)

    return side._replace(name=name, launch=launch)


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
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
        "logit_bias": {str(word): 100},
        **STREAMED,
    }


def _ask(word: int, at_once: int, tokens: int, server: Server, shape: str, number: int) -> Round:
    seeds = random.Random(number).sample(range(1, 1 << 30), 1 + at_once)
    alone = shape == shapes_of(at_once)[0]
    bodies = [request(png(seed), word, tokens) for seed in (seeds[:1] if alone else seeds[1:])]

    async def load() -> list[Answer]:
        return await asyncio.gather(*(complete(server.port, body, _PATH) for body in bodies))

    before = server.cpu()
    answers = asyncio.run(load())
    return {
        "ttft_s": statistics.median(answer.ttft for answer in answers),
        "pictures_per_s": len(answers) / seconds_of(answers),
        "cpu_s": (server.cpu() - before) / len(answers),
        "prompt_tokens": answers[0].prompt_tokens,
    }


def show(console: Console, record: VisionServing) -> int:
    title = (
        f"{record.model} with random weights, text in Q8_0, tower in F16, pictures of {_SIDE} pixels, medians of the "
        "rounds"
    )
    return show_sides(title, record, measures(record.at_once))
