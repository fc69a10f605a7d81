"""The ``stentor`` command's subcommands. Exit codes are in :mod:`..common.exit_codes`.

Errors that an operator can fix are one line on stderr. Heavy modules are imported only when needed.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from stentor import __version__
from stentor.engine.loading.download.hub import resolve_model
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.processes.fork_server_owner import ForkServer
from stentor.engine.processes.logs import set_up_logging

from ..app.first_engine import fetch, first_engines
from ..common.exit_codes import DONE, FAILED, INTERRUPTED, MISUSED
from ..config.config import Config, ConfigError, HttpConfig
from ..http.address import listening
from ..http.listening import StartError
from ..middleware.access_control import open_access
from ..observability.request import current_request_id
from ..options.elsewhere import HARMLESS_SWITCHES, HARMLESS_VALUES, harmless
from ..options.option import GROUPS, OPTIONS, Option
from ..options.reading import CONFIG_FILE, nearest, read_config

logger = logging.getLogger(__name__)

PULL_OPTIONS: Final = (
    *("model", "revision", "tokenizer", "transcription-model", "embedding-model", "speech-model", "demo"),
)


_HTTP: Final = HttpConfig()


class Parser(argparse.ArgumentParser):
    """argparse that complains in one line, and takes no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def run(given: Sequence[str], fork_server: ForkServer | None = None) -> int:
    """Runs one command and returns its exit code. ``fork_server`` has been started ahead, and is the caller's."""
    try:
        if given[:1] == ["tune"]:
            from stentor.kernels.tuning.search import main as tune  # late: torch and every kernel

            return tune(list(given[1:]))
        if given[:1] == ["bench"]:
            from stentor.loadtest.bench import main as bench  # late: it is not needed to serve

            return bench(list(given[1:]))
        arguments = _parse_arguments(list(given))
        if arguments.command == "env":
            from ..options.environment import describe_environment, gpus

            if arguments.model is None:
                print(describe_environment(os.environ))
                return 0
            from ..options.model_facts import describe_model  # late: it opens files

            print(describe_model(resolve_model(arguments.model), list(gpus())))
            return 0
        if arguments.command == "doctor":
            from .doctor import examine, report  # late: it uses the network

            return DONE if report(examine(os.environ, arguments.host, arguments.port), sys.stdout.isatty()) else FAILED
        if arguments.command == "chat":
            return _chat(arguments)
        if arguments.command == "completion":
            print(_completion(arguments.shell), end="")
            return DONE
        config = read_config(_given(arguments), os.environ)
        if arguments.command == "pull":
            return _pull(config)
        if arguments.command == "precompile":
            return _precompile(config, arguments.gpu, arguments.capability, Path(arguments.output))
        if arguments.command == "run-batch":
            without_effect = getattr(arguments, "harmless", [])
            return _run_batch(config, Path(arguments.input_file), Path(arguments.output_file), without_effect)
        with _exit_on_sigterm():
            return _serve(config, fork_server, getattr(arguments, "harmless", []))
    except ConfigError as error:
        return _complain(str(error), MISUSED)
    except CheckpointError as error:
        return _complain(str(error), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _serve(config: Config, fork_server: ForkServer | None, without_effect: Sequence[str]) -> int:
    worker = config.engine.worker
    set_up_logging(worker.log_level, worker.log_format, "server", current_request_id)
    _warn_of(without_effect)
    try:
        access = open_access(config.access)
        with listening(config):  # a port in use is reported before a model is downloaded
            pass
        located = fetch(config)
        _check_fit(located)
        # keys given by environment stay in this process: the engine and its workers inherit the rest
        for option in OPTIONS:
            if option.kind.secret:
                os.environ.pop(option.variable, None)
        with first_engines(located.engines(), fork_server) as engines:
            from ..app.lifecycle import (
                serve,  # late: it imports the whole server, while engines load their models
            )

            return serve(located, engines, access)
    except StartError as error:
        return _complain(str(error), FAILED)


def _warn_of(without_effect: Sequence[str]) -> None:
    """Logs why these options of other servers have no effect."""
    for option in without_effect:
        logger.warning("%s has no effect: %s", option, harmless(option.removeprefix("--")))


def _check_fit(located: Config) -> None:
    from stentor.engine.worker.memory import memory_limit  # late: none of it is needed to know the options

    from .fit import check_fit, usable_gpus

    check_fit(located.engines(), usable_gpus, memory_limit())


def _chat(arguments: argparse.Namespace) -> int:
    from .chat import ChatFailed, Conversation, chat, open_client  # late: it imports HTTP

    given = {name: getattr(arguments, name) for name in ("model", "temperature", "max_tokens")}
    asked = {name: value for name, value in given.items() if value is not None}
    keys = os.environ.get("STENTOR_API_KEY", "").split(",")
    try:
        with open_client(arguments.url, keys[0].strip() or None) as client:
            conversation = Conversation(client, asked)
            conversation.begin(arguments.system)
            prompt = arguments.prompt if arguments.quick is None else arguments.quick
            chat(conversation, prompt, sys.stdin, sys.stdout, sys.stderr)
    except ChatFailed as error:
        return _complain(str(error), FAILED)
    return DONE


def _completion(shell: str) -> str:
    """The script, with the benchmarks, which have parsers of their own."""
    from stentor.loadtest.bench import COMMANDS

    from .completion import Command, described, flag, script

    commands = described(*_build_parser())
    bench = Command(commands["bench"].help, [flag((), "what to measure", "COMMAND", COMMANDS)])
    return script(shell, {**commands, "bench": bench})


def _run_batch(config: Config, source: Path, target: Path, without_effect: Sequence[str]) -> int:
    if not source.exists():
        return _complain(f"--input-file: expected a file that exists, got '{source}'", MISUSED)
    worker = config.engine.worker
    set_up_logging(worker.log_level, worker.log_format, "server", current_request_id)
    _warn_of(without_effect)
    from ..offline.run_batch import run_batch  # late: it imports the whole server

    try:
        with _exit_on_sigterm():
            return run_batch(config, source, target)
    except StartError as error:
        return _complain(str(error), FAILED)


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Until the server listens for signals itself, SIGTERM means to leave in good order."""

    def leave(*_: object) -> NoReturn:
        raise SystemExit(DONE)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _pull(config: Config) -> int:
    located = fetch(config)
    paths = (located.engine.worker.model, located.transcription.path, located.embedding.path)
    for path in (*paths, located.speech.path, located.speech.codec_path):
        if path:
            print(path)
    return 0


def _precompile(config: Config, gpu: str | None, capability: int, folder: Path) -> int:
    from stentor.engine.worker.errors import SetupError  # late: torch and every kernel
    from stentor.engine.worker.setup.precompile import precompile

    for role, engine in fetch(config).engines().items():
        try:
            made = precompile(engine.worker, gpu, capability, folder, lambda *_: None)
        except (SetupError, RuntimeError) as error:
            return _complain(f"{role} model: {error}", FAILED)
        print(f"{role} model: {made} kernels for compute capability {capability / 10} are in {folder}", flush=True)
    return DONE


# ---- the command line


def _parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser, commands = _build_parser()
    arguments, unknown = parser.parse_known_args(_with_flags_repeated(argv))
    if arguments.command is None:
        words = "serve, chat, run-batch, pull, precompile, doctor, env, completion, bench or tune"
        parser.error(f"expected a command: {words}")
    if unknown:
        command = commands[arguments.command]
        flags = [f"--{spelling}" for option in (*OPTIONS, CONFIG_FILE) for spelling in option.spellings]
        name = unknown[0].partition("=")[0]
        what = "option" if name.startswith("-") else "argument"
        beside = f" beside the model {model}" if what == "argument" and (model := vars(arguments).get("model")) else ""
        command.error(f"unknown {what} {name}{beside}{nearest(name, flags)}")
    return arguments


def _with_flags_repeated(argv: list[str]) -> list[str]:
    """vLLM's ``--served-model-name a b`` as ``--served-model-name a --served-model-name b``.

    Only where the model comes first: otherwise a bare word behind a value may be the model.
    """
    if len(argv) < 2 or argv[1].startswith("-"):
        return argv
    many = {f"--{spelling}" for option in OPTIONS if option.kind.many for spelling in option.spellings}
    found: list[str] = []
    flag, values = "", 0
    for word in argv:
        if word.startswith("-"):
            flag, values = word if word in many else "", 0
        elif flag:
            values += 1
            found += [flag] if values > 1 else []
        found.append(word)
    return found


def _build_parser() -> tuple[Parser, Mapping[str, Parser]]:
    parser = Parser(prog="stentor", description="A single-node server for language and speech models.")
    parser.add_argument("--version", action="version", version=f"stentor {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    footer = (
        "Each option is also an environment variable (--max-model-len is STENTOR_MAX_MODEL_LEN) and a key of the "
        "TOML file (max-model-len). A flag beats the environment, which beats the file."
    )
    serve = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP",
        usage="%(prog)s [MODEL] [OPTION ...]",  # a list of all options would take three screens
        description="Most used: --demo, --port, --api-key, --max-model-len, --kv-cache-memory, --served-model-name.",
        epilog=footer,
    )
    talk = subparsers.add_parser(
        "chat", help="talk to a server in the terminal", epilog="A key is read from STENTOR_API_KEY."
    )
    _add_chat_options(talk)
    batch = subparsers.add_parser(
        "run-batch",
        help="answer a file of requests, without a server",
        usage="%(prog)s -i FILE -o FILE [MODEL] [OPTION ...]",
        epilog=footer,
    )
    batch.add_argument(
        "-i", "--input-file", required=True, metavar="FILE", help="requests, as OpenAI's batches have them"
    )
    batch.add_argument("-o", "--output-file", required=True, metavar="FILE", help="answers; those it has are kept")
    pull = subparsers.add_parser("pull", help="fetch models into the cache and print where they are", epilog=footer)
    ahead = subparsers.add_parser(
        "precompile",
        help="compile a model's GPU kernels where there need not be a GPU",
        usage="%(prog)s --output FOLDER [MODEL] [OPTION ...]",
        epilog=footer,
    )
    ahead.add_argument("--output", required=True, metavar="FOLDER", help="TRITON_PRECOMPILED_DIR where they are used")
    ahead.add_argument(
        "--capability", type=int, default=90, metavar="N", help="of the GPU: 90 is Hopper, 9.0 (default: %(default)s)"
    )
    ahead.add_argument("--gpu", metavar="NAME", help="as files of block sizes are named, such as nvidia-h200")
    tune = subparsers.add_parser("tune", help="search the block sizes of GPU kernels on this GPU", add_help=False)
    bench = subparsers.add_parser("bench", help="measure a server, the engine or the kernels", add_help=False)
    doctor = subparsers.add_parser(
        "doctor", help="check that this machine has what a server needs, and say what to do if not"
    )
    doctor.add_argument("--host", default=_HTTP.host, help="address to listen on (default: %(default)s)")
    doctor.add_argument("--port", type=int, default=_HTTP.port, help="port to listen on (default: %(default)s)")
    environment = subparsers.add_parser(
        "env", help="print versions, CPU, GPU, compiler and paths; or the parts, memory and capacity of a model"
    )
    environment.add_argument("model", metavar="MODEL", nargs="?", help="a folder, a file or a name, as for serve")
    completion = subparsers.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        epilog="bash and zsh: source <(stentor completion bash); fish: stentor completion fish | source",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")
    _add_options(serve, OPTIONS)
    _add_options(batch, OPTIONS)
    for parser_with in (serve, batch):
        _add_harmless(parser_with)
    _add_options(ahead, OPTIONS)
    _add_options(pull, tuple(option for option in OPTIONS if option.name in PULL_OPTIONS))
    own = {"chat": talk, "doctor": doctor, "env": environment, "completion": completion, "tune": tune, "bench": bench}
    return parser, {"serve": serve, "run-batch": batch, "pull": pull, "precompile": ahead, **own}


def _add_chat_options(parser: Parser) -> None:
    hidden = argparse.SUPPRESS  # vLLM's
    parser.add_argument("-q", "--quick", metavar="PROMPT", help=hidden)
    parser.add_argument("--model-name", dest="model", help=hidden)
    parser.add_argument("--system-prompt", dest="system", help=hidden)
    parser.add_argument("prompt", nargs="?", help="answer this, or what is piped in, and end; else talk line by line")
    parser.add_argument("--url", default=f"http://{_HTTP.host}:{_HTTP.port}", help="the server (default: %(default)s)")
    parser.add_argument("--model", help="one of several models")
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument("--temperature", type=float, help="how freely to draw; by default as the model says")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens of an answer, at most")


def _add_options(parser: Parser, options: tuple[Option, ...]) -> None:
    groups = {name: parser.add_argument_group(title) for name, title in GROUPS.items()}
    for option in sorted((*options, CONFIG_FILE), key=lambda option: option.name != "model"):
        target = groups[option.group]
        text = option.help + _default_text(option)
        if option.name == "model":
            target.add_argument("model", nargs="?", default=argparse.SUPPRESS, metavar="MODEL", help=text)
            target.add_argument("--model", dest="model", default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # as vLLM's
        elif option.kind.switch:
            for name in option.names:
                target.add_argument(
                    f"--{name}",
                    dest=name,
                    action=argparse.BooleanOptionalAction,
                    default=argparse.SUPPRESS,
                    help=text if name == option.name else argparse.SUPPRESS,
                )
            for name in option.foreign_opposites:
                target.add_argument(
                    f"--{name}",
                    dest=name,
                    action="store_true",
                    default=argparse.SUPPRESS,
                    help=argparse.SUPPRESS,
                )
        else:
            for name in option.names:
                target.add_argument(
                    f"--{name}",
                    *([f"-{name}"] if len(name) == 2 else []),  # vLLM's short ones, as -tp
                    dest=name,  # errors name the given option
                    action="append" if option.kind.many else "store",
                    default=argparse.SUPPRESS,
                    metavar=option.kind.metavar,
                    help=text if name == option.name else argparse.SUPPRESS,
                )


def _add_harmless(parser: Parser) -> None:
    """Options of other servers without effect, which are not shown."""
    for name in (*HARMLESS_VALUES, *HARMLESS_SWITCHES, *(f"no-{name}" for name in HARMLESS_SWITCHES)):
        parser.add_argument(
            f"--{name}",
            dest="harmless",
            action=_Harmless,
            nargs=None if name in HARMLESS_VALUES else 0,
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


class _Harmless(argparse.Action):
    """Notes the option's name."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, _values: Any, option: str | None = None
    ) -> None:
        namespace.harmless = [*getattr(namespace, "harmless", []), option]


def _default_text(option: Option) -> str:
    value = option.default if option.path else None
    shown = value not in (None, (), "") and not isinstance(value, bool)
    return f" (default: {value})" if shown else ""


def _given(arguments: argparse.Namespace) -> dict[str, object]:
    own = ("command", "input_file", "output_file", "output", "capability", "gpu", "harmless")
    return {name: value for name, value in vars(arguments).items() if name not in own}


def _complain(message: str, code: int) -> int:
    print(f"stentor: {message}", file=sys.stderr)
    return code
