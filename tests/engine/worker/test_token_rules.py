"""The rules of a transcript, beside the same rules told row by row and token by token."""

import math
import random

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.worker.sampling.token_rules import RuleTable
from stentor.protocols.ipc.audio import TokenRules
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow
from stentor.tests.examples import examples

CPU = torch.device("cpu")
EOT, BEGIN, VOCAB = 20, 24, 40
RULES = TokenRules(suppressed=[1, 21, 22, 23], suppressed_first=[2, EOT], timestamp_begin=BEGIN,
                   max_initial_timestamp=3, eot=EOT)  # fmt: skip
PLAIN = TokenRules([1, 21], [2, EOT], -1, -1, EOT)
PARAMS = SamplingParams(max_tokens=50)


def entered(outputs: list[int], rules: TokenRules | None, slot: int = 0) -> NewRow:
    return NewRow(slot, [7, 7, *outputs], 2, msgspec.structs.replace(PARAMS, rules=rules), 0, [])


def permitted(logits: list[float], outputs: list[int], rules: TokenRules | None) -> set[int]:
    """Told straight from the definition, for one row."""
    left = dict(enumerate(logits))
    if rules is None:
        return set(left)

    def forbid(tokens: object) -> None:
        for token in tokens:  # type: ignore[attr-defined]
            left.pop(token, None)

    forbid(rules.suppressed)
    if not outputs:
        forbid(rules.suppressed_first)
    begin = rules.timestamp_begin
    if begin < 0:
        return set(left)
    text, stamps = range(begin), range(begin, len(logits))
    if not outputs:
        forbid(text)
        if rules.max_initial_timestamp >= 0:
            forbid(range(begin + rules.max_initial_timestamp + 1, len(logits)))
    else:
        last_is = outputs[-1] >= begin
        one_before_is = len(outputs) < 2 or outputs[-2] >= begin
        if last_is and one_before_is:
            forbid(stamps)
        elif last_is:
            forbid(range(rules.eot))
        if seen := [token for token in outputs if token >= begin]:
            forbid(range(begin, seen[-1] if last_is and not one_before_is else seen[-1] + 1))
    total = sum(math.exp(left[token]) for token in stamps if token in left)
    if total and math.log(total) > max((left[token] for token in text if token in left), default=-math.inf):
        forbid(text)
    return set(left)


def drawable(table: RuleTable, logits: torch.Tensor, slots: list[int]) -> list[set[int]]:
    changed = logits.clone()
    table.apply_(changed, slots)
    kept = changed > -math.inf
    assert torch.equal(changed[kept], logits[kept]), "what may be drawn keeps its logit"
    return [set(torch.nonzero(row).flatten().tolist()) for row in kept]


@settings(max_examples=examples(60, 600), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_a_step_of_many_rows_forbids_what_each_row_alone_forbids(seed: int, count: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    table = RuleTable(VOCAB, CPU)
    logits = torch.randn(count, VOCAB) * rng.choice([0.5, 3.0])
    rows = []
    for slot in range(count):
        rules = rng.choice([RULES, RULES, PLAIN, None])
        outputs = [rng.choice([rng.randrange(EOT), rng.randrange(BEGIN, VOCAB)]) for _ in range(rng.randrange(7))]
        early = rng.randrange(len(outputs) + 1)
        table.add(entered(outputs[:early], rules, slot))
        for token in outputs[early:]:
            table.append(slot, token)
        rows.append((outputs, rules))
    expected = [permitted(row.tolist(), *reported) for row, reported in zip(logits, rows, strict=True)]
    assert drawable(table, logits, list(range(count))) == expected


@pytest.mark.parametrize(
    ("outputs", "allowed"),
    [
        ([], {24, 25, 26, 27}),
        ([24], set(range(EOT + 1)) - {1}),
        ([24, 5], (set(range(EOT + 1)) - {1}) | set(range(25, 40))),
        ([24, 5, 30], {20, *range(30, 40)}),
        ([24, 5, 30, 30], set(range(EOT + 1)) - {1}),
        ([24, 5, 30, 31, 6], (set(range(EOT + 1)) - {1}) | set(range(32, 40))),
        ([24, 5, 39], {20, 39}),
        ([24, 5, 39, 39, 6], set(range(EOT + 1)) - {1}),
    ],
)
def test_timestamps_come_in_pairs_and_do_not_go_back(outputs: list[int], allowed: set[int]) -> None:
    table = RuleTable(VOCAB, CPU)
    table.add(entered(outputs, RULES))
    logits = torch.zeros(1, VOCAB)
    logits[:, [3, EOT]] = 100.0  # text is likelier than all timestamps, where there may be text
    assert drawable(table, logits, [0]) == [allowed]


def test_text_gives_way_where_timestamps_together_are_likelier() -> None:
    table = RuleTable(VOCAB, CPU)
    table.add(entered([24, 5], RULES))
    logits = torch.zeros(1, VOCAB)
    logits[:, 3] = 2.0
    assert drawable(table, logits, [0]) == [set(range(25, 40))], "15 timestamps against one piece of text"
    logits[:, 3] = 3.0
    assert 3 in drawable(table, logits, [0])[0]


def test_ids_beyond_the_vocabulary_are_nobodys() -> None:
    table = RuleTable(VOCAB, CPU)
    table.add(entered([], TokenRules([99, -3, 1], [500], 4000, 50, 9000)))
    assert drawable(table, torch.zeros(1, VOCAB), [0]) == [set(range(VOCAB)) - {1}]


def test_a_slot_that_was_left_has_no_rules_and_logits_that_are_no_numbers_stay() -> None:
    table = RuleTable(VOCAB, CPU)
    table.add(entered([24, 5], RULES))
    broken = torch.full((1, VOCAB), math.nan)
    table.apply_(broken, [0])
    assert broken[:, 5].isnan().all()
    table.remove(0)
    assert drawable(table, torch.zeros(1, VOCAB), [0]) == [set(range(VOCAB))]
