"""Log-probabilities as chat, completions and ``prompt_logprobs`` show them."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from stentor.protocols.ipc.steps import TokenLogprobs
from stentor.protocols.openai.chat import ChoiceLogprobs, TokenLogprob, TopLogprob
from stentor.protocols.openai.completions import CompletionLogprobs
from stentor.protocols.openai.generate import RankedToken, SampledToken, TokensLogprobs
from stentor.protocols.openai.usage import PromptLogprob, PromptLogprobs

from ..http.whole_answer import AnswerBudget, JsonList
from ..text.tokenizers.tokenizer import Tokenizer

LOWEST: Final = -9999.0
"""Stands for minus infinity, which JSON does not have."""
_INSIDE: Final = bytes(range(0x80, 0xC0))
"""Bytes with which no character begins."""


class TokenNames:
    """Names of tokens for clients: their text, or ``token_id:7`` if the client asked for that."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool) -> None:
        self.raw: Final = tokenizer.bytes_of
        self.name: Final = "token_id:{}".format if as_ids else tokenizer.name_of


def chat_logprobs(
    entries: Iterable[TokenLogprobs], names: TokenNames, top: int, *, with_sampled: bool = False
) -> ChoiceLogprobs:
    """``top`` alternatives at each position. ``with_sampled``: behind the sampled token, if it is none of them."""

    def alternatives(entry: TokenLogprobs) -> list[tuple[int, float]]:
        shown = entry.top[:top]
        if with_sampled and all(token != entry.token for token, _ in shown):
            return [(entry.token, entry.logprob), *shown]
        return shown

    return ChoiceLogprobs(
        [
            TokenLogprob(
                names.name(entry.token),
                finite(entry.logprob),
                list(names.raw(entry.token)),
                [
                    TopLogprob(names.name(token), finite(value), list(names.raw(token)))
                    for token, value in alternatives(entry)
                ],
            )
            for entry in entries
        ]
    )


def tokens_logprobs(entries: Iterable[TokenLogprobs], names: TokenNames, top: int, *, ranked: bool) -> TokensLogprobs:
    """vLLM's shape for token ids. ``ranked``: the alternatives are the likeliest, best first."""

    def told(token: int, logprob: float, rank: int | None) -> dict[str, Any]:
        raw = list(names.raw(token))
        return {"token_id": token, "rank": rank, "token": names.name(token), "logprob": finite(logprob), "bytes": raw}

    content = []
    for entry in entries:
        sampled = told(entry.token, entry.logprob, entry.rank)
        others = [
            RankedToken(**told(token, value, place if ranked else None))
            for place, (token, value) in enumerate(entry.top[:top], start=1)
        ]
        content.append(SampledToken(**sampled, top_logprobs=others or [RankedToken(**sampled)]))
    return TokensLogprobs(content)


def prompt_logprobs(entries: Sequence[TokenLogprobs | None], names: TokenNames, top: int) -> PromptLogprobs:
    """vLLM's shape: the prompt's token and ``top`` alternatives by id, with ranks."""
    return [None if entry is None else _prompt_entry(entry, names, top) for entry in entries]


def _prompt_entry(entry: TokenLogprobs, names: TokenNames, top: int) -> dict[str, PromptLogprob]:
    shown = {str(entry.token): PromptLogprob(finite(entry.logprob), entry.rank, names.name(entry.token))}
    for rank, (token, value) in enumerate(entry.top[:top], start=1):
        shown.setdefault(str(token), PromptLogprob(finite(value), rank, names.name(token)))
    return shown


class CompletionLogprobsBuilder:
    """Builds the four parallel lists, counting where in the text each token begins.

    ``silent`` tokens add nothing to the text. A token that begins inside a character is given the
    character's own offset.
    """

    def __init__(self, names: TokenNames, top: int, silent: frozenset[int], characters: int = 0) -> None:
        """``characters`` is the length of the text before the first token."""
        self._names = names
        self._top = top
        self._silent = silent
        self._characters = characters

    @classmethod
    def of_prompt(cls, names: TokenNames, top: int, text: str, tokens: Sequence[int]) -> "CompletionLogprobsBuilder":
        """Log-probabilities of all ``tokens`` of a prompt whose echo is ``text``.

        Offsets are counted back from its end; tokens before the text (a BOS) get offset 0.
        """
        return cls(names, top, frozenset(), len(text) - sum(_starts(names.raw(token)) for token in tokens))

    def add(self, tokens: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> CompletionLogprobs:
        """The lists for ``tokens``, which follow the tokens of earlier calls; there is an entry for each."""
        lists, silent = CompletionLogprobs([], [], [], []), self._silent
        for token, entry in zip(tokens, entries, strict=True):
            raw = b"" if token in silent else self._names.raw(token)
            inside = bool(raw) and raw[0] & 0xC0 == 0x80
            lists.tokens.append(self._names.name(token))
            lists.text_offset.append(max(0, self._characters - inside))
            lists.token_logprobs.append(None if entry is None else finite(entry.logprob))
            lists.top_logprobs.append(None if entry is None else self._alternatives(entry))
            self._characters += _starts(raw)
        return lists

    def _alternatives(self, entry: TokenLogprobs) -> dict[str, float]:
        """The token itself is always included, so there may be one more entry than requested."""
        shown: dict[str, float] = {}
        for token, value in entry.top[: self._top]:
            shown.setdefault(self._names.name(token), finite(value))
        shown.setdefault(self._names.name(entry.token), finite(entry.logprob))
        return shown


class CompletionLists:
    """The growing lists of a choice, or of the common part of several."""

    __slots__ = ("all",)

    def __init__(self, budget: AnswerBudget) -> None:
        self.all = [JsonList(budget) for _ in CompletionLogprobs.__struct_fields__]
        """In the order of the fields of :class:`CompletionLogprobs`."""

    def extend(self, lists: CompletionLogprobs) -> None:
        """Raises as :meth:`..http.whole_answer.AnswerBudget.add`."""
        for written, more in zip(self.all, msgspec.structs.astuple(lists), strict=True):
            written.extend(more)


def _starts(raw: bytes) -> int:
    """Characters that begin in ``raw``."""
    return len(raw.translate(None, _INSIDE))


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)
