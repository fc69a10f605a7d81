"""The command line of ``stentor bench serve``, and the load that it asks for."""

import argparse
import os
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ..record import MEASURES
from ..tool import Parser, UsageError, add_flag, at_least, between
from .api import APIS, Settings
from .arrivals import RAMP_HELP, Stage, plan
from .dataset import Dataset
from .driver import Load
from .http import parse_address
from .lengths import LENGTHS_HELP, Lengths, parse_lengths
from .measure import parse_limits
from .workload import Random, Workload

DEFAULT_REQUESTS: Final = 100
DEFAULT_CONCURRENCY: Final = 8
DEFAULT_LENGTH: Final = "128"
DEFAULT_TOKEN_RANGE: Final = "1000:30000"
_LENGTH: Final = f"LENGTH is {LENGTHS_HELP}.".replace("; ", ";\n  ")
_EPILOG: Final = """\
examples:
  stentor bench serve --concurrency 32 --requests 256 --input-tokens 128 --output-tokens 128 --ignore-eos
  stentor bench serve --rate 4 --duration 60 --input-tokens lognormal:400:0.8 --goodput ttft:500 tpot:50
  stentor bench serve --api chat --dataset sharegpt.json --turns 4 --think 2 --concurrency 16
  stentor bench serve --ramp concurrency:1,2,4,8,16,32 --duration 120 --save run.json --html run.html
"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="stentor bench serve",
        description="Loads a server that speaks OpenAI's API over streams, and measures what its clients see:\n"
        "time to the first token (TTFT), between tokens (ITL, TPOT), to the end (E2E), tokens and requests a second.",
        epilog=_EPILOG,
    )
    _add_server(parser.add_argument_group("the server").add_argument)
    _add_workload(parser.add_argument_group("what is asked", _LENGTH))
    _add_arrivals(parser.add_argument_group("when it is asked").add_argument)
    _add_output(parser.add_argument_group("what comes of it").add_argument)
    return parser


def _add_server(add: Any) -> None:
    add("--url", "--base-url", default="http://127.0.0.1:8000", help="its address (default: %(default)s)")
    add("--api", choices=sorted(APIS), default="completions", help="default: %(default)s")
    add("--model", default="", help="name of the model (default: the first that /v1/models lists)")
    add("--api-key", help="sent as a bearer token (default: $OPENAI_API_KEY, where it is set)")
    add("--header", action="append", default=[], metavar="NAME:VALUE", help="may be repeated")
    add("--insecure", action="store_true", help="accept any TLS certificate")
    silence = "of silence within a request (default: 600)"
    add("--timeout", type=between(0), default=600.0, metavar="SECONDS", help=silence)


def _add_workload(group: argparse._ArgumentGroup) -> None:
    of_input = "tokens of a prompt; words, without --tokens (default: 128)"
    add_flag(group, "--input-tokens", "--input", metavar="LENGTH", help=of_input)
    of_output = "most tokens of an answer (default: 128, or as in --dataset)"
    add_flag(group, "--output-tokens", "--output", metavar="LENGTH", help=of_output)
    add: Any = group.add_argument
    add("--ignore-eos", action="store_true", help="ask for answers of full length (vLLM's field)")
    add("--tokens", action="store_true", help="ask in random token ids, for exact lengths (completions only)")
    add("--token-range", metavar="LOW:HIGH", help=f"ids that --tokens draws from (default: {DEFAULT_TOKEN_RANGE})")
    add("--prefixes", metavar="N:TOKENS", help="N beginnings of so many tokens, one of them before each prompt")
    add("--turns", metavar="LENGTH", help="turns of a conversation, each with the answers before it")
    add("--think", metavar="LENGTH", help="seconds between an answer and the next turn (default: 0)")
    of_file = "conversations in JSON or JSONL: ShareGPT's form, OpenAI's messages, or prompt"
    add("--dataset", type=Path, metavar="FILE", help=of_file)
    add("--temperature", type=float, help="sent with each request")
    add("--extra-body", type=_json_object, default={}, metavar="JSON", help="fields; null removes one")
    add("--seed", type=at_least(0), default=0, help="the same seed asks the same (default: 0)")


def _add_arrivals(add: Any) -> None:
    users = f"so many users, each asking again once answered (default: {DEFAULT_CONCURRENCY})"
    add("--concurrency", type=at_least(1), metavar="N", help=users)
    add("--rate", "--request-rate", type=between(0), metavar="N", help="requests a second, or conversations")
    shape = "of --rate: 1 is Poisson, less comes in bursts, inf is evenly spaced (default: 1)"
    add("--burstiness", type=between(0), default=1.0, metavar="SHAPE", help=shape)
    add("--ramp", metavar="STEPS", help=RAMP_HELP)
    add("--max-concurrency", type=at_least(1), metavar="N", help="requests at once at most, with --rate")
    in_all = f"in all (default: {DEFAULT_REQUESTS}, or no limit with --duration)"
    add("--requests", "--num-prompts", type=at_least(1), metavar="N", help=in_all)
    add("--duration", type=between(0), metavar="SECONDS", help="of sending; answers are waited for")
    add("--warmup", type=at_least(0), default=0, metavar="N", help="requests before, not counted")


def _add_output(add: Any) -> None:
    limits = f"limits within which a request is good, of {', '.join(MEASURES)}: ttft:500 tpot:50"
    add("--goodput", nargs="+", default=[], metavar="MEASURE:MS", help=limits)
    add("--name", default="", help="of the result, for reports")
    add("--save", type=Path, metavar="FILE.json", help="everything, for compare and report")
    add("--csv", type=Path, metavar="FILE", help="one row a request")
    add("--html", type=Path, metavar="FILE", help="a page with plots")
    add("--quiet", action="store_true", help="print nothing but errors")
    add("--self-test", action="store_true", help="measure this client instead, on a server that costs nothing")


def build_load(arguments: argparse.Namespace, command: Sequence[str]) -> Load:
    """Raises :class:`..tool.UsageError`."""
    return Load(
        address=parse_address(arguments.url),
        api=APIS[arguments.api],
        settings=Settings(arguments.model, arguments.temperature, arguments.ignore_eos, arguments.extra_body),
        workload=_workload(arguments),
        stages=_stages(arguments),
        seed=arguments.seed,
        name=arguments.name,
        command=command,
        headers=_headers(arguments),
        tls=_tls(arguments),
        timeout=arguments.timeout,
        max_concurrency=arguments.max_concurrency,
        warmup=arguments.warmup,
        limits=parse_limits(arguments.goodput),
    )


def _stages(arguments: argparse.Namespace) -> list[Stage]:
    requests, concurrency = arguments.requests, arguments.concurrency
    if requests is None and arguments.duration is None:
        requests = DEFAULT_REQUESTS
    if concurrency is None and arguments.rate is None and arguments.ramp is None:
        concurrency = DEFAULT_CONCURRENCY
    return plan(
        concurrency=concurrency,
        rate=arguments.rate,
        burstiness=arguments.burstiness,
        ramp=arguments.ramp,
        requests=requests,
        seconds=arguments.duration,
    )


def _workload(arguments: argparse.Namespace) -> Workload:
    think = parse_lengths(arguments.think or "0", least=0.0)
    turns = parse_lengths(arguments.turns or "1")
    if arguments.dataset is not None:
        return _dataset(arguments, turns, think)
    if arguments.tokens and not APIS[arguments.api].takes_tokens:
        raise UsageError(f"--tokens: the {arguments.api} API takes text alone; use --api completions")
    if arguments.tokens and turns.greatest > 1:
        raise UsageError("--tokens and --turns exclude one another: answers come back as text")
    if arguments.token_range and not arguments.tokens:
        raise UsageError("--token-range is for --tokens")
    prefixes, prefix_tokens = _pair("--prefixes", arguments.prefixes, "N:TOKENS") if arguments.prefixes else (0, 0)
    token_range = _pair("--token-range", arguments.token_range or DEFAULT_TOKEN_RANGE, "LOW:HIGH")
    if token_range[0] >= token_range[1]:
        raise UsageError(f"--token-range {arguments.token_range}: expected LOW:HIGH, the upper one excluded")
    return Random(
        seed=arguments.seed,
        inputs=parse_lengths(arguments.input_tokens or DEFAULT_LENGTH),
        outputs=parse_lengths(arguments.output_tokens or DEFAULT_LENGTH),
        turns=turns,
        think=think,
        prefixes=prefixes,
        prefix_tokens=prefix_tokens,
        token_range=token_range if arguments.tokens else None,
    )


def _dataset(arguments: argparse.Namespace, turns: Lengths, think: Lengths) -> Dataset:
    for option in ("input_tokens", "prefixes", "tokens", "token_range"):
        if getattr(arguments, option):
            raise UsageError(f"--{option.replace('_', '-')} and --dataset exclude one another")
    outputs = parse_lengths(arguments.output_tokens) if arguments.output_tokens else None
    return Dataset(arguments.dataset, arguments.seed, turns, outputs, think)


def _headers(arguments: argparse.Namespace) -> dict[str, str]:
    headers = {}
    if key := arguments.api_key or os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    for given in arguments.header:
        name, colon, value = given.partition(":")
        if not colon or not name.strip() or "\n" in given or "\r" in given:
            raise UsageError(f"--header {given!r}: expected NAME:VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _tls(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    if not arguments.insecure:
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _pair(option: str, text: str, form: str) -> tuple[int, int]:
    first, _, second = text.partition(":")
    if not (first.isdecimal() and second.isdecimal() and int(second) > 0):
        raise UsageError(f"{option} {text}: expected {form}, whole numbers")
    return int(first), int(second)


def _json_object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object ({error})") from None
