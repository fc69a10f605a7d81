"""The sampler's state of one row: its rules as tensors, and the tokens that it has seen, if needed."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from stentor.protocols.ipc.sampling import SamplingParams

from .logprobs import Alternatives

_GROWTH = 64
"""Free entries for distinct tokens when a row's list is made; the number doubles when they run out."""


class SeenTokens:
    """The distinct tokens of a row, and how often each is in its output."""

    def __init__(self, prompt: Iterable[int], outputs: Iterable[int], vocab_size: int, device: torch.device) -> None:
        counts = Counter(dict.fromkeys((t for t in prompt if 0 <= t < vocab_size), 0))
        self._of_prompt = len(counts)
        """The first entries, which are never taken back."""
        counts.update(t for t in outputs if 0 <= t < vocab_size)
        self._places = {token: place for place, token in enumerate(counts)}
        self._counts = counts
        room = torch.zeros((2, len(counts) + _GROWTH), dtype=torch.int64)
        room[0, : len(counts)] = torch.tensor(list(counts), dtype=torch.int64)
        room[1, : len(counts)] = torch.tensor(list(counts.values()), dtype=torch.int64)
        self._lists = room.to(device)  # [ids or counts, capacity]

    def append(self, token: int) -> None:
        """Add an output token."""
        place = self._places.get(token)
        if place is None:
            place = len(self._places)
            if place == self._lists.shape[1]:
                self._lists = torch.cat((self._lists, torch.zeros_like(self._lists)), dim=1)
            self._places[token] = place
            self._lists[0, place] = token
        self._counts[token] += 1
        self._lists[1, place] = self._counts[token]

    def take_back(self, token: int) -> None:
        """Remove the last output token."""
        place = self._places[token]
        self._counts[token] -= 1
        self._lists[1, place] = self._counts[token]
        if not self._counts[token] and place >= self._of_prompt:
            del self._places[token], self._counts[token]

    def lists(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and output counts, int64 [distinct tokens]; views that the next append may change."""
        ids, counts = self._lists[:, : len(self._places)].unbind()
        return ids, counts


class SampledRow:
    """One row. ``index`` counts the tokens sampled so far, and keys the noise of the next."""

    __slots__ = (
        "_bias",
        "_early_bias",
        "_fallback",
        "_min_tokens",
        "allowed",
        "edits",
        "greedy",
        "index",
        "logprobs",
        "plain",
        "seen",
        "strengths",
    )

    def __init__(
        self, params: SamplingParams, tokens: Sequence[int], prompt_len: int, vocab_size: int, device: torch.device
    ) -> None:
        self.index = len(tokens) - prompt_len
        self.greedy = params.temperature == 0.0
        self.logprobs = Alternatives.of(params, vocab_size)
        self.strengths = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self.seen: SeenTokens | None = None
        if params.needs_penalties:
            prompt = tokens[:prompt_len] if params.repetition_penalty != 1.0 else ()
            self.seen = SeenTokens(prompt, tokens[prompt_len:], vocab_size, device)

        allowed = _allowed(params, vocab_size)
        self.allowed = None if allowed is None else torch.tensor(allowed, dtype=torch.int64, device=device)
        banned = set(params.banned_token_ids)
        self._fallback = next((token for token in allowed or () if token not in banned), 0)
        self._min_tokens = params.min_tokens
        self._bias = _bias(params, (), vocab_size, device)
        self._early_bias = self._bias
        if self.index < params.min_tokens:
            self._early_bias = _bias(params, (*params.eos_token_ids, *params.stop_token_ids), vocab_size, device)
        self.edits = any(x is not None for x in (self.seen, self.allowed, self._bias, self._early_bias))
        self.plain = self.greedy and not self.edits and self.logprobs is None

    def bias(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Ids [N] int64 and biases [N] float32 at this index; -inf bans."""
        return self._early_bias if self.index < self._min_tokens else self._bias

    def append(self, token: int) -> int:
        """Append a sampled token; -1 (nothing to sample) becomes the fallback. Returns the token."""
        if token < 0:
            token = self._fallback
        self.index += 1
        if self.seen is not None:
            self.seen.append(token)
        return token

    def take_back(self, tokens: Sequence[int]) -> None:
        """Remove the tokens appended last, given oldest first."""
        self.index -= len(tokens)
        if self.seen is not None:
            for token in reversed(tokens):
                self.seen.take_back(token)


def _allowed(params: SamplingParams, vocab_size: int) -> list[int] | None:
    if params.allowed_token_ids is None:
        return None
    return sorted({token for token in params.allowed_token_ids if 0 <= token < vocab_size})


def _bias(
    params: SamplingParams, early: Iterable[int], vocab_size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Bias and bans as one list: a ban is a bias of -inf."""
    values = dict(params.logit_bias)
    values.update(dict.fromkeys((*params.banned_token_ids, *early), -math.inf))
    values = {token: value for token, value in values.items() if 0 <= token < vocab_size}
    if not values:
        return None
    return (
        torch.tensor(list(values), dtype=torch.int64, device=device),
        torch.tensor(list(values.values()), dtype=torch.float32, device=device),
    )
