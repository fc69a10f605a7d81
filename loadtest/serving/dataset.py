"""Conversations from a file: ShareGPT's form, OpenAI's messages, or a prompt a line; JSON or JSONL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from .api import Message
from .lengths import Lengths, whole
from .workload import Part, Session, Turn, generator

CHARACTERS_A_TOKEN: Final = 4
"""How the length of a reply in a file is guessed, in want of the model's tokenizer."""
_USER: Final = frozenset({"human", "user"})
_SYSTEM: Final = frozenset({"system", "developer"})


class DatasetError(ValueError):
    """A file without conversations; the message is one line."""


class _Said(msgspec.Struct, rename={"speaker": "from"}):
    speaker: str = ""
    value: str | None = None
    role: str = ""
    content: Any = None


class _Entry(msgspec.Struct):
    conversations: list[_Said] | None = None
    conversation: list[_Said] | None = None
    messages: list[_Said] | None = None
    prompt: str | list[int] | None = None
    system: str | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None
    completion: str | None = None


_decode_entry = msgspec.json.Decoder(_Entry).decode
_decode_entries = msgspec.json.Decoder(list[_Entry]).decode


class Dataset:
    """Sessions of a file in an order that the seed shuffles, over again when they run out.

    ``outputs`` overrides the lengths that the file says or shows; ``turns`` is how many user turns of a conversation
    are used at most. The answers that are sent back are the server's own, not the file's.
    """

    def __init__(self, path: Path, seed: int, turns: Lengths, outputs: Lengths | None, think: Lengths) -> None:
        self._path = path
        self._seed = seed
        self._turns = turns
        self._outputs = outputs
        self._think = think
        self._sessions = [session for entry in _read(path) if (session := _session(entry)) is not None]
        if not self._sessions:
            raise DatasetError(
                f"{path} holds no conversation: expected JSON or JSONL with conversations, messages or prompt"
            )
        self._order = generator(seed, Part.ORDER).permutation(len(self._sessions)).tolist()

    def __len__(self) -> int:
        return len(self._sessions)

    def session(self, number: int) -> Session:
        found = self._sessions[self._order[number % len(self._order)]]
        rng = generator(self._seed, Part.SESSION, number)
        turns = []
        for index, turn in enumerate(found.turns[: max(1, whole(self._turns, rng))]):
            outputs = turn.output_tokens if self._outputs is None else whole(self._outputs, rng)
            think = self._think.draw(rng) if index else 0.0
            turns.append(msgspec.structs.replace(turn, output_tokens=outputs, think=think))
        return Session(turns, found.opening)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "dataset",
            "file": str(self._path),
            "sessions": len(self._sessions),
            "seed": self._seed,
            "turns": msgspec.to_builtins(self._turns),
            "outputs": msgspec.to_builtins(self._outputs),
            "think": msgspec.to_builtins(self._think),
        }

    @property
    def has_tokens(self) -> bool:
        """Some prompts are token ids."""
        return any(turn.tokens is not None for session in self._sessions for turn in session.turns)


def _read(path: Path) -> Iterator[_Entry]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from None
    if raw.lstrip()[:1] == b"[":
        try:
            yield from _decode_entries(raw)
        except msgspec.DecodeError as error:
            raise DatasetError(f"{path} is no list of conversations: {error}") from None
        return
    for number, line in enumerate(raw.splitlines(), 1):
        if line.strip():
            try:
                yield _decode_entry(line)
            except msgspec.DecodeError as error:
                raise DatasetError(f"{path}, line {number}: {error}") from None


def _session(entry: _Entry) -> Session | None:
    if isinstance(entry.prompt, list):
        return Session([Turn(tokens=entry.prompt, output_tokens=_asked(entry))]) if entry.prompt else None
    if entry.prompt:
        opening = [Message("system", entry.system)] if entry.system else []
        return Session([Turn(entry.prompt, output_tokens=_asked(entry))], opening)
    opening = []
    turns: list[Turn] = []
    for said in entry.conversations or entry.conversation or entry.messages or []:
        who, text = said.speaker or said.role, said.value if said.value is not None else _flat(said.content)
        if not text:
            continue
        if who in _SYSTEM and not turns:
            opening.append(Message("system", text))
        elif who in _USER:
            turns.append(Turn(text, output_tokens=_asked(entry)))
        elif turns and turns[-1].output_tokens is None:
            turns[-1] = msgspec.structs.replace(turns[-1], output_tokens=_guess(text))
    return Session(turns, opening) if turns else None


def _asked(entry: _Entry) -> int | None:
    return entry.output_tokens or entry.max_tokens or (_guess(entry.completion) if entry.completion else None)


def _guess(text: str) -> int:
    return max(1, len(text) // CHARACTERS_A_TOKEN)


def _flat(content: Any) -> str:
    """A message's content, of which parts other than text are left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
