"""The arithmetic of a beam search, against its plain definitions over a tiny vocabulary."""

import itertools
import math
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.server.text.output.beams import Beam, BeamSearch
from stentor.tests.examples import examples

Tokens = tuple[int, ...]
Model = Callable[[Tokens], list[float]]
"""Log-probabilities of each next token."""
Found = tuple[Tokens, float]
"""A sequence, with the token that ended it, and the sum of its log-probabilities."""


def model_of(seed: int, vocab: int) -> Model:
    """No two sequences of this model are equally likely, but for rounding."""

    def logprobs(tokens: Tokens) -> list[float]:
        logits = [math.sin(1 + 37 * (seed + hash((*tokens, token)) % 1_000_003)) * 3 for token in range(vocab)]
        total = math.log(sum(map(math.exp, logits)))
        return [logit - total for logit in logits]

    return logprobs


def searched(model: Model, **options: object) -> tuple[list[Found], int]:
    """What the search finds, and how many steps it takes."""
    search = BeamSearch(**options)  # type: ignore[arg-type]
    steps = 0
    while not search.done:
        top_logprobs = []
        for beam in search.running:
            found = model(tokens_of(beam))
            ranked = sorted(range(len(found)), key=lambda token: -found[token])
            top_logprobs.append([(token, found[token]) for token in ranked])
        search.advance(top_logprobs)
        steps += 1
    return [(tokens_of(beam), beam.total) for beam in search.best()], steps


def tokens_of(beam: Beam) -> Tokens:
    return tuple(entry.token for entry in beam.entries())


def score_of(found: Found, ends: frozenset[int], prompt_len: int, length_penalty: float) -> float:
    tokens, total = found
    length = prompt_len + len(tokens) - (tokens[-1] in ends)
    return total / float(length**length_penalty)


def plainly(
    model: Model, width: int, length_penalty: float, prompt_len: int, max_tokens: int, ends: frozenset[int]
) -> list[Found]:
    """The definition, without an early end: every step is made, and every result kept."""
    running: list[Found] = [((), 0.0)]
    ended: list[Found] = []
    for _ in range(max_tokens):
        candidates: list[Found] = []
        for tokens, total in running:
            logprobs = model(tokens)
            likely = sorted(range(len(logprobs)), key=lambda token: -logprobs[token])[: 2 * width]
            candidates += [((*tokens, token), total + logprobs[token]) for token in likely]
        ended += [each for each in candidates if each[0][-1] in ends]
        going = [each for each in candidates if each[0][-1] not in ends]
        running = sorted(going, key=lambda each: -each[1])[:width]
    found = sorted([*ended, *running], key=lambda each: -score_of(each, ends, prompt_len, length_penalty))
    return found[:width]


PENALTIES = st.sampled_from([-1.5, -0.5, 0.0, 0.3, 1.0, 2.0])


@given(
    st.integers(0, 10**6),
    st.integers(2, 8),
    st.integers(1, 4),
    PENALTIES,
    st.integers(1, 4),
    st.integers(1, 7),
    st.integers(0, 2),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_search_finds_what_its_definition_finds_though_it_ends_as_soon_as_nothing_can_change(
    seed: int, vocab: int, width: int, length_penalty: float, prompt_len: int, max_tokens: int, ends: int
) -> None:
    model, end = model_of(seed, vocab), frozenset(range(ends))
    options = {"width": width, "length_penalty": length_penalty, "prompt_len": prompt_len, "max_tokens": max_tokens}
    found, steps = searched(model, ends=end, **options)
    assert found == plainly(model, width, length_penalty, prompt_len, max_tokens, end)
    assert steps <= max_tokens


@given(st.integers(0, 10**6), PENALTIES, st.integers(0, 1))
@settings(max_examples=examples(50), deadline=None)
def test_a_search_as_wide_as_all_sequences_finds_the_best_of_all(seed: int, length_penalty: float, ends: int) -> None:
    vocab, most, end = 3, 3, frozenset(range(ends))
    model = model_of(seed, vocab)
    options = {"width": vocab**most, "length_penalty": length_penalty, "prompt_len": 2, "max_tokens": most}
    found, _ = searched(model, ends=end, **options)
    everything: list[Found] = []
    for length in range(1, most + 1):
        for tokens in itertools.product(range(vocab), repeat=length):
            if any(token in end for token in tokens[:-1]) or (length < most and tokens[-1] not in end):
                continue
            total = sum(model(tokens[:place])[token] for place, token in enumerate(tokens))
            everything.append((tokens, total))
    everything.sort(key=lambda each: -score_of(each, end, 2, length_penalty))
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in everything]


def test_a_search_ends_when_what_runs_on_cannot_reach_the_results() -> None:
    logprobs = [math.log(0.9), math.log(0.06), math.log(0.04)]  # the first token ends a sequence
    options = {"width": 1, "length_penalty": 0.0, "prompt_len": 1, "max_tokens": 1000, "ends": frozenset((0,))}
    found, steps = searched(lambda tokens: logprobs, **options)
    assert (found, steps) == ([((0,), logprobs[0])], 1)


def test_alternatives_are_kept_beside_each_token_with_its_rank() -> None:
    search = BeamSearch(width=1, length_penalty=0.0, prompt_len=1, max_tokens=1, ends=frozenset((7,)), alternatives=1)
    search.advance([[(7, -1.0), (5, -1.5), (6, -2.0)]])
    ended, ran_out = [*search.best(), *search.running]
    (entry,) = ended.entries()
    assert (entry.token, entry.rank, entry.top, ended.stop_token) == (7, 1, [(7, -1.0)], 7)
    (entry,) = ran_out.entries()
    assert (entry.token, entry.rank, entry.top, ran_out.stop_token) == (5, 2, [(7, -1.0)], None)
