"""``stentor chat``: a conversation with a server, in the terminal."""

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final, TextIO

import httpx
import msgspec

_MOST_LINE: Final = 16 << 20
"""Characters of one event that are read; no server sends more of an answer at once."""
_CONNECT_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 600.0
"""A server that says nothing for so long is given up; ours gives a sign of life far more often."""
_HELP: Final = "/new begins anew, /system TEXT sets the system prompt, /quit or Ctrl-D ends; Ctrl-C stops an answer"
_DIM, _PLAIN = "\033[2m", "\033[0m"


class ChatFailed(Exception):
    """The server cannot be reached, or refuses; the message is one line."""


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Error(msgspec.Struct):
    message: str = "it does not say why"


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_EVENT: Final = msgspec.json.Decoder(_Event)


class Answered(msgspec.Struct):
    """Facts about an answer."""

    text: str = ""
    tokens: int = 0
    began: float = 0.0
    first: float = 0.0
    """0 while nothing has come."""
    ended: float = 0.0
    cut: bool = False
    """The limit of tokens has ended it."""

    def __str__(self) -> str:
        seconds = self.ended - self.first
        rate = f", {(self.tokens - 1) / seconds:.1f} a second" if self.tokens > 1 and seconds > 0 else ""
        cut = ", cut off by the limit of tokens" if self.cut else ""
        return f"{self.tokens} tokens{rate}, the first after {self.first - self.began:.2f} s{cut}"


class Conversation(msgspec.Struct):
    """A conversation with one server. The fields of ``asked`` are sent with every request: ``model``, ``temperature``,
    …"""

    client: httpx.Client
    asked: Mapping[str, Any] = msgspec.field(default_factory=dict)
    messages: list[dict[str, str]] = msgspec.field(default_factory=list)

    def begin(self, system: str | None = None) -> None:
        """Anew, with the same system prompt or another."""
        kept = [message for message in self.messages if message["role"] == "system"] if system is None else []
        self.messages = [{"role": "system", "content": system}] if system else kept

    def ask(self, text: str, write: Callable[[str, bool], None]) -> Answered:
        """``write`` gets every piece of the answer, and whether it is reasoning. An answer stopped by Ctrl-C stays in
        the conversation; a refused message does not. Raises :class:`ChatFailed`."""
        answered = Answered(began=time.monotonic())
        messages = [*self.messages, {"role": "user", "content": text}]
        body = {**self.asked, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        with contextlib.suppress(KeyboardInterrupt), contextlib.closing(self._events(body)) as events:
            for event in events:
                for choice in event.choices:
                    thought = choice.delta.reasoning_content or choice.delta.reasoning or ""
                    said = choice.delta.content or ""
                    if (thought or said) and not answered.first:
                        answered.first = time.monotonic()
                    if thought:
                        write(thought, True)
                    if said:
                        write(said, False)
                        answered.text += said
                    answered.cut = answered.cut or choice.finish_reason == "length"
                if event.usage is not None:
                    answered.tokens = event.usage.completion_tokens
        answered.ended = time.monotonic()
        answered.first = answered.first or answered.ended
        self.messages = [*messages, {"role": "assistant", "content": answered.text}]
        return answered

    def _events(self, body: Mapping[str, Any]) -> Generator[_Event, None, None]:
        try:
            with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise ChatFailed(_refusal(response))
                for line in _lines(response):
                    if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                        event = _EVENT.decode(data)
                        if event.error is not None:
                            raise ChatFailed(event.error.message)
                        yield event
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            why = (str(error).partition("] ")[2] or str(error)).lower()  # without [Errno 111]
            raise ChatFailed(f"no server at {self.client.base_url}: {why}; start one with `stentor serve`") from error
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            raise ChatFailed(f"the answer broke off: {str(error) or type(error).__name__}") from error


def _lines(response: httpx.Response) -> Iterator[str]:
    """Lines of a stream, of bounded length."""
    held = ""
    for text in response.iter_text():
        *whole, held = (held + text).split("\n")
        yield from whole
        if len(held) > _MOST_LINE:
            raise ChatFailed(f"an event of the answer is longer than {_MOST_LINE} characters")


def _refusal(response: httpx.Response) -> str:
    response.read()
    try:
        error = _EVENT.decode(response.content).error
    except msgspec.DecodeError:
        error = None
    said = f": {error.message}" if error is not None else ""
    return f"the server answered {response.status_code}{said}"


def open_client(url: str, key: str | None) -> httpx.Client:
    """``url`` may end in ``/v1``, as clients of OpenAI's name it, and need not begin with ``http://``. Must be closed.
    Raises :class:`ChatFailed` where it is no address, or ``key`` cannot be sent."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise ChatFailed("STENTOR_API_KEY: a key has printable ASCII characters alone")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    timeout = httpx.Timeout(_SILENT_SECONDS, connect=_CONNECT_SECONDS)
    address = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
    try:
        parsed = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise ChatFailed(f"--url {url}: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ChatFailed(f"--url {url}: an address such as http://127.0.0.1:8000 is expected")
    return httpx.Client(base_url=parsed, headers=headers, timeout=timeout)


def chat(conversation: Conversation, prompt: str | None, source: TextIO, output: TextIO, notes: TextIO) -> None:
    """Answers ``prompt``, or all of ``source`` if that is no terminal; else line by line until its end. Raises
    :class:`ChatFailed` for a single answer."""
    if prompt is None and not source.isatty():
        prompt = source.read()
    if prompt is not None:
        if not prompt.strip():
            raise ChatFailed("nothing was asked: the prompt is empty")
        _answer(conversation, prompt, output, notes)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # lines can then be edited, and called back
    print(_HELP, file=notes)
    while (line := _line(source, notes)) is not None:
        command, _, rest = line.partition(" ")
        if command == "/quit":
            return
        if command in ("/new", "/system"):
            conversation.begin(rest if command == "/system" else None)
        elif command.startswith("/"):
            print(_HELP, file=notes)
        elif line:
            try:
                _answer(conversation, line, output, notes)
            except ChatFailed as error:
                print(error, file=notes)


def _line(source: TextIO, notes: TextIO) -> str | None:
    """None at the end. A backslash at the end of a line continues it."""
    lines: list[str] = []
    while True:
        try:
            text = input("... " if lines else "> ") if source is sys.stdin else source.readline()
        except (EOFError, KeyboardInterrupt):
            print(file=notes)
            return None
        if not text and source is not sys.stdin:
            return None
        lines.append(text.rstrip("\n"))
        if not lines[-1].endswith("\\"):
            return "\n".join(line.removesuffix("\\") for line in lines).strip()


def _answer(conversation: Conversation, text: str, output: TextIO, notes: TextIO) -> None:
    dim = output.isatty()

    def write(piece: str, thought: bool) -> None:
        if not thought:
            print(piece, end="", file=output, flush=True)
        elif dim:
            print(f"{_DIM}{piece}{_PLAIN}", end="", file=output, flush=True)

    answered = conversation.ask(text, write)
    print(file=output, flush=True)
    if notes.isatty():
        print(f"{_DIM}{answered}{_PLAIN}", file=notes)
