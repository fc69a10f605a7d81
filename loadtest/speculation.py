"""``stentor bench speculation``: tokens a second of one stream with drafts and without, in turn.

    stentor bench speculation --rounds 3 --save speculation.json
    stentor bench speculation --config '{"method": "suffix"}' --only stentor,stentor-drafts

All sides are up, and get the same requests one after the other: *edits* of passages from the texts of `stentor bench
quality`, and summaries of them; *chat*, questions whose answers repeat nothing; *noise*, where a bias and a high
temperature draw among a few words, so that all has stood there before and nothing can be guessed. Rates are those of
decoding, from an answer's first token on. A ratio is that of one round, the median over rounds is told. llama.cpp is
given drafts of the same kind, as many and found by as many equal tokens.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from stentor.engine.loading.download.hub import DEFAULT_MODEL, resolve_model
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.gguf.file import GGUFFile
from stentor.protocols.ipc.config import SpeculativeConfig

from .client import STREAMED, StreamError, complete
from .peers.figures import Column, Measure, Round, SidesRecord, medians
from .peers.measuring import entry_of, fail, interrupted_by_sigterm, show_sides, take_turns
from .peers.places import llama_binary, root
from .peers.running import Server, ServerError
from .peers.sides import MODEL, SIDES, Launch, Room, Side
from .peers.weights import Weights, WeightsError
from .quality.command import ORDER, TEXTS
from .server_process import HOST
from .serving.http import Address, HttpClient
from .serving.measure import rise
from .serving.run import scrape
from .tool import ToolError, UsageError, at_least, make_parser, run_tool

EDITS: Final = (
    "Correct the mistakes in the following text, and repeat the whole of it:\n\n{}",
    "Rewrite the following text so that it is easier to read, and change as little as you can:\n\n{}",
    "Summarise the following text, and quote its most important sentences:\n\n{}",
)
CHAT: Final = (
    "Why is the sky blue?",
    "Tell me a short story about a sailor who cannot swim.",
    "How do I make a good cup of coffee?",
    "What is the difference between weather and climate?",
    "Write a poem about the first day of autumn.",
    "How should I prepare for a job interview?",
)
PASSAGE: Final = 900
"""Characters of a text that are edited, at least: to the end of the line or sentence."""
WORDS: Final = 30
"""That noise is drawn from."""
_NOISY: Final = 3
"""Requests of noise."""
_PATH: Final = "/v1/chat/completions"
_METRICS_SECONDS: Final = 5.0
_SUFFIX: Final = "-drafts"
_BASES: Final[Mapping[str, str]] = {"stentor": "stentor-q4_0", "llama.cpp": "llama.cpp-q4_0"}
NAMES: Final = tuple(name + suffix for name in _BASES for suffix in ("", _SUFFIX))


class Speculation(SidesRecord, frozen=True, kw_only=True, tag="speculation"):
    config: SpeculativeConfig
    output_tokens: int
    ratios: Mapping[str, float]
    """Tokens a second with drafts over those without, by side and kind."""


KINDS: Final = ("edits", "chat", "noise")
MEASURES: Final = [
    measure
    for kind in KINDS
    for measure in (
        Measure(kind, "tokens_per_s", f"{kind}: decode tokens/s", True),
        Measure(kind, "tokens_a_step", f"{kind}: tokens a step", True, 2),
        Measure(kind, "cpu_ms", f"{kind}: the server's CPU ms a token", digits=2),
    )
]


def main(argv: list[str]) -> int:
    return run_tool(_parser(), argv, _measure, show, CheckpointError, WeightsError, ServerError, StreamError)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("speculation", __doc__)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a .gguf file or what names one (default: %(default)s)")
    parser.add_argument(
        "--config",
        default='{"method": "ngram", "num_speculative_tokens": 5}',
        metavar="JSON",
        help="as of --speculative-config (default: %(default)s)",
    )
    parser.add_argument(
        "--no-repack", action="store_true", help="start llama.cpp so: on some processors its repacked weights end it"
    )
    parser.add_argument("--only", metavar="SIDE,…", help=f"of {', '.join(NAMES)} (default: those that are installed)")
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="measured rounds after one to warm up (default: 3)"
    )
    parser.add_argument("--output-tokens", type=at_least(2), default=128, metavar="N", help="tokens out (128)")
    return parser


def _measure(arguments: argparse.Namespace, about: dict[str, Any]) -> Speculation:
    try:
        config = msgspec.json.decode(arguments.config, type=SpeculativeConfig)
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"--config: {error}") from error
    names = arguments.only.split(",") if arguments.only else NAMES
    sides = [side_of(name, config, repack=not arguments.no_repack) for name in names]
    missing = {side.name: side.missing for side in sides if side.missing is not None}
    if arguments.only and missing:
        raise ToolError(next(iter(missing.values())))
    say = partial(print, file=sys.stderr)
    with interrupted_by_sigterm(), ExitStack() as stack:
        weights = Weights(resolve_model(arguments.model), root() / "weights", llama_binary("llama-quantize"))
        file = weights.form("q4_0", say)
        bodies = requests(words_of(file), arguments.output_tokens)
        entries = [entry_of(side, file, Room(1)) for side in sides if side.name not in missing]
        for entry in entries:
            stack.callback(entry.server.stop)
            try:
                entry.server.start_with(bodies["chat"][0], _PATH)
            except ServerError as error:
                fail(entry, error)
        take_turns(entries, KINDS, arguments.rounds, partial(_ask, bodies, arguments.output_tokens), say)
    columns = [entry.column for entry in entries]
    return Speculation(
        model=arguments.model,
        columns=columns,
        skipped=missing,
        medians=medians(columns, MEASURES),
        config=config,
        output_tokens=arguments.output_tokens,
        ratios=ratios(columns),
        **about,
    )


def side_of(name: str, config: SpeculativeConfig, *, repack: bool = True) -> Side:
    """One without drafts or with those of ``config``. Raises :class:`UsageError` for one that there is not."""
    base, suffix, rest = name.partition(_SUFFIX)
    if base not in _BASES or rest:
        raise UsageError(f"no side is called {name!r}; expected {', '.join(NAMES)}")
    side = SIDES[_BASES[base]]
    added = [] if not suffix else _stentor(config) if base == "stentor" else _llama_cpp(config)
    if base == "llama.cpp" and not repack:
        added.append("--no-repack")

    def launch(weights: Path, port: int, room: Room) -> Launch:
        own = side.launch(weights, port, room)
        return Launch([*own.command, *added], own.environment)

    return side._replace(name=name, launch=launch)


def _stentor(config: SpeculativeConfig) -> list[str]:
    return ["--speculative-config", str(config)]


def _llama_cpp(config: SpeculativeConfig) -> list[str]:
    """The nearest that it has. Raises :class:`UsageError` where it has nothing of the kind."""
    most = str(config.num_speculative_tokens)
    match config.method:
        case "ngram":
            sizes = ["--spec-ngram-simple-size-n", str(config.prompt_lookup_min), "--spec-ngram-simple-size-m", most]
            return ["--spec-type", "ngram-simple", *sizes]
        case "draft_model":
            return ["--spec-type", "draft-simple", "--spec-draft-model", config.model, "--spec-draft-n-max", most]
    raise UsageError(f"llama.cpp does not draft by {config.method}; leave it out with --only")


def words_of(file: Path) -> list[int]:
    """The first words of the vocabulary that begin with a space and have five letters."""
    with GGUFFile(file) as opened:
        tokens = opened.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    found = [at for at, token in enumerate(tokens) if len(token) == 6 and token[0] == "Ġ" and token[1:].islower()]
    if len(found) < WORDS:
        raise ToolError(f"the vocabulary of {file} has {len(found)} words of five letters, expected at least {WORDS}")
    return found[:WORDS]


def passage(text: str) -> str:
    """Its beginning, whole sentences or lines."""
    cut = PASSAGE + min(at for end in (". ", "\n") if (at := text[PASSAGE:].find(end)) >= 0)
    return text[: cut + 1].strip()


def requests(words: Sequence[int], tokens: int) -> dict[str, list[dict[str, Any]]]:
    """The bodies of each kind."""

    def body(content: str, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        fixed = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return {"model": MODEL, "messages": messages, **fixed, **more, **STREAMED}

    texts = [passage((TEXTS / name).read_text(encoding="utf-8")) for name in ORDER]
    bias = dict.fromkeys(map(str, words), 100)
    return {
        "edits": [body(edit.format(text)) for text in texts for edit in EDITS],
        "chat": [body(question) for question in CHAT],
        "noise": [body("Say words.", temperature=2, seed=seed, logit_bias=bias) for seed in range(_NOISY)],
    }


def _ask(bodies: Mapping[str, Sequence[dict[str, Any]]], tokens: int, server: Server, kind: str, number: int) -> Round:
    return asyncio.run(_load(server, bodies[kind], tokens, number))


async def _load(server: Server, bodies: Sequence[dict[str, Any]], tokens: int, number: int) -> Round:
    cpu, before, seconds = server.cpu(), await counters(server.port), 0.0
    for body in bodies:
        # answers of other rounds are not to be known
        answer = await complete(server.port, {**body, "cache_salt": f"round {number}"}, _PATH)
        if answer.tokens != tokens:
            raise StreamError(f"it counts {answer.tokens} tokens out, expected {tokens}")
        seconds += answer.ended - answer.arrivals[0]
    drawn = len(bodies) * (tokens - 1)
    found = {"tokens_per_s": drawn / seconds, "cpu_ms": 1e3 * (server.cpu() - cpu) / drawn}
    if before:
        accepted = rise(before, await counters(server.port), "spec_decode_num_accepted_tokens_total")
        found["tokens_a_step"] = drawn / (drawn - accepted)
    return found


async def counters(port: int) -> dict[str, float]:
    """What a server counts; nothing where it does not tell."""
    with closing(HttpClient(Address("http", HOST, port), {}, _METRICS_SECONDS)) as client:
        return await scrape(client)


def ratios(columns: Sequence[Column]) -> dict[str, float]:
    """The median over rounds of tokens a second with drafts over those without."""
    by_name = {column.name: column for column in columns}
    found = {}
    for name in _BASES:
        plain, drafting = by_name.get(name), by_name.get(name + _SUFFIX)
        if plain is None or drafting is None:
            continue
        for kind in KINDS:
            pairs = zip(plain.rounds.get(kind, []), drafting.rounds.get(kind, []), strict=False)
            if each := [new["tokens_per_s"] / old["tokens_per_s"] for old, new in pairs]:
                found[f"{name}, {kind}"] = round(statistics.median(each), 3)
    return found


def show(console: Console, record: Speculation) -> int:
    title = f"{record.model} in Q4_0, one stream, {record.output_tokens} tokens out, drafts by {record.config}"
    code = show_sides(title, record, MEASURES)
    for name, ratio in record.ratios.items():
        console.print(f"with drafts over without, {name}: {ratio:.2f}", highlight=False)
    return code
