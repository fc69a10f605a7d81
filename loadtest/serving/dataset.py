"""Conversations from a file: ShareGPT's form, OpenAI's messages, or a prompt a line; JSON or JSONL."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from ..tool import UsageError
from .api import Message
from .lengths import Lengths, whole
from .workload import Part, Session, Turn, generator

CHARACTERS_A_TOKEN: Final = 4
"""How the length of a reply in a file is guessed, in want of the model's tokenizer."""


class _Said(msgspec.Struct, rename={"speaker": "from"}):
    speaker: str = ""
    value: str | None = None
    role: str = ""
    content: Any = None


class _Entry(msgspec.Struct):
    conversations: list[_Said] = []
    messages: list[_Said] = []
    prompt: str = ""
    system: str | None = None
    output_tokens: int | None = None
    max_tokens: int | None = None


_decode_entry = msgspec.json.Decoder(_Entry).decode
_decode_entries = msgspec.json.Decoder(list[_Entry]).decode


class Dataset:
    """Sessions of a file in an order that the seed shuffles, over again when they run out.

    ``outputs`` overrides the lengths that the file says or shows; ``turns`` is how many user turns of a conversation
    are used at most. The answers that are sent back are the server's own, not the file's. Raises
    :class:`..tool.UsageError`.
    """

    def __init__(self, path: Path, seed: int, turns: Lengths, outputs: Lengths | None, think: Lengths) -> None:
        self._path = path
        self._seed = seed
        self._turns = turns
        self._outputs = outputs
        self._think = think
        self._sessions = [session for entry in _read(path) if (session := _session(entry)).turns]
        if not self._sessions:
            raise UsageError(
                f"{path} holds no conversation: expected JSON or JSONL with conversations, messages or prompt"
            )
        self._order = generator(seed, Part.ORDER).permutation(len(self._sessions)).tolist()

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
        lengths = {"turns": self._turns, "outputs": self._outputs, "think": self._think}
        about = {"kind": "dataset", "file": str(self._path), "sessions": len(self._sessions), "seed": self._seed}
        return {**about, **msgspec.to_builtins(lengths)}


def _read(path: Path) -> Iterable[_Entry]:
    line = ""
    try:
        raw = path.read_bytes()
        if raw.lstrip()[:1] == b"[":
            return _decode_entries(raw)
        entries = []
        for number, text in enumerate(raw.splitlines(), 1):
            line = f", line {number}"
            if text.strip():
                entries.append(_decode_entry(text))
        return entries
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}{line}: no conversation: {error}") from None


def _session(entry: _Entry) -> Session:
    asked = entry.output_tokens or entry.max_tokens
    opening = [Message("system", entry.system)] if entry.system else []
    turns = [Turn(entry.prompt, output_tokens=asked)] if entry.prompt else []
    for said in entry.conversations or entry.messages:
        who, text = said.speaker or said.role, said.value if said.value is not None else _flat(said.content)
        if not text:
            continue
        if who in ("system", "developer") and not turns:
            opening.append(Message("system", text))
        elif who in ("human", "user"):
            turns.append(Turn(text, output_tokens=asked))
        elif turns and turns[-1].output_tokens is None:
            guess = max(1, len(text) // CHARACTERS_A_TOKEN)
            turns[-1] = msgspec.structs.replace(turns[-1], output_tokens=guess)
    return Session(turns, opening)


def _flat(content: Any) -> str:
    """A message's content, of which parts other than text are left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
