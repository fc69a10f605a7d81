"""The in-place edits and the log-probabilities, definition and native version."""

import math
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.kernels import sampling
from stentor.kernels.native import unavailable_reason
from stentor.kernels.sampling import native, reference
from stentor.tests.examples import examples

needs_native = pytest.mark.skipif(
    not native.usable(torch.zeros(1, 1)), reason=unavailable_reason() or "the native library is loaded"
)
VERSIONS = [pytest.param(reference, id="reference"), pytest.param(native, id="native", marks=needs_native)]


def ragged(lists: dict[int, list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """rows, offsets and flat ids of {row: ids}."""
    lengths = torch.tensor([0] + [len(ids) for ids in lists.values()])
    flat = [token for ids in lists.values() for token in ids]
    return torch.tensor(list(lists)), lengths.cumsum(0), torch.tensor(flat, dtype=torch.int64)


@pytest.mark.parametrize("version", VERSIONS)
def test_penalties_follow_their_formula_and_order(version: ModuleType) -> None:
    logits = torch.tensor([[1.0, 2.0, -3.0, 4.0], [1.0, 2.0, -3.0, 4.0], [0.5, -0.5, 0.0, 1.0]])
    counts = torch.tensor([2, 0, 1, 3])
    strengths = torch.tensor([[2.0, 0.5, 0.25], [1.0, -1.0, 0.0]])
    version.penalise_(logits, strengths, *ragged({2: [0, 1, 3], 0: [2]}), counts)
    assert logits[0].tolist() == [1.0, 2.0, 0.0, 4.0]  # -3 + 1 * 3
    assert logits[1].tolist() == [1.0, 2.0, -3.0, 4.0]
    assert logits[2].tolist() == [0.5 / 2 - 1.0 - 0.25, -0.5 * 2, 0.0, 1.0 / 2 - 0.5 - 0.25]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_bias_is_added_and_minus_infinity_bans(version: ModuleType) -> None:
    logits = torch.tensor([[1.0, 2.0, math.inf], [3.0, 4.0, 5.0]])
    version.add_bias_(logits, *ragged({1: [2, 0], 0: [2]}), torch.tensor([-10.0, 100.0, -math.inf]))
    assert logits[1].tolist() == [103.0, 4.0, -5.0]
    assert version.argmax(logits).tolist() == [1, 0]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_restriction_leaves_only_the_allowed(version: ModuleType) -> None:
    logits = torch.arange(12.0).reshape(3, 4)
    version.restrict_(logits, *ragged({0: [3, 1], 2: []}))
    inf = math.inf
    assert logits.tolist() == [[-inf, 1.0, -inf, 3.0], [4.0, 5.0, 6.0, 7.0], [-inf] * 4]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_mask_takes_the_logits_of_tokens_whose_bit_is_not_set(version: ModuleType) -> None:
    logits = torch.arange(105.0).reshape(3, 35)
    version.mask_(logits, torch.tensor([2, 0]), torch.tensor([[-1, 0], [0b101, 0b100]], dtype=torch.int32))
    assert logits[0].isfinite().nonzero().flatten().tolist() == [0, 2, 34]
    assert logits[0, 34] == 34
    assert torch.equal(logits[1], torch.arange(35.0, 70.0))
    assert logits[2].isfinite().nonzero().flatten().tolist() == list(range(32))


@needs_native
@settings(max_examples=examples(30, 300), deadline=None)
@given(vocabulary=st.integers(1, 300), seed=st.integers(0, 2**31))
def test_native_masks_equal_the_definition(vocabulary: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, vocabulary, generator=generator)
    logits[0, 0], logits[3, 0] = math.inf, math.nan
    words = torch.randint(-(2**31), 2**31, (3, -(-vocabulary // 32)), generator=generator).to(torch.int32)
    words[torch.rand(words.shape, generator=generator) < 0.3] = -1
    words[torch.rand(words.shape, generator=generator) < 0.3] = 0
    expected = logits.clone()
    rows = torch.tensor([3, 0, 2])
    sampling.mask_(logits, rows, words, variant="native")
    sampling.mask_(expected, rows, words, variant="reference")
    assert torch.equal(logits.nan_to_num(nan=99.0), expected.nan_to_num(nan=99.0))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_mask_of_a_row_outside_the_logits_is_an_error(version: ModuleType) -> None:
    with pytest.raises(IndexError):
        version.mask_(torch.zeros(2, 4), torch.tensor([2]), torch.zeros((1, 1), dtype=torch.int32))


@pytest.mark.parametrize("words", [torch.zeros((1, 2), dtype=torch.int32), torch.zeros((1, 1), dtype=torch.int64)])
def test_masks_that_do_not_fit_are_refused(words: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="words must be int32"):
        sampling.mask_(torch.zeros(2, 32), torch.tensor([0]), words)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("lists", [{0: [4]}, {2: [0]}, {0: [-5]}])
def test_an_id_or_row_outside_the_logits_is_an_error(version: ModuleType, lists: dict[int, list[int]]) -> None:
    with pytest.raises(IndexError):
        version.restrict_(torch.zeros(2, 4), *ragged(lists))


def test_lists_that_do_not_fit_are_refused() -> None:
    rows, offsets, ids = ragged({0: [1]})
    logits = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="offsets"):
        sampling.restrict_(logits, rows, offsets[:1], ids)
    with pytest.raises(ValueError, match="ids and counts"):
        sampling.penalise_(logits, torch.ones(1, 3), rows, offsets, ids, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="strengths"):
        sampling.penalise_(logits, torch.ones(1, 2), rows, offsets, ids, ids)
    with pytest.raises(ValueError, match="values"):
        sampling.add_bias_(logits, rows, offsets, ids, torch.ones(2))


@needs_native
@settings(max_examples=examples(30, 300), deadline=None)
@given(
    vocabulary=st.integers(1, 300),
    seed=st.integers(0, 2**31),
    strengths=st.tuples(st.floats(0.5, 2), st.floats(-2, 2), st.floats(-2, 2)),
)
def test_native_edits_equal_the_definition_bit_for_bit(
    vocabulary: int, seed: int, strengths: tuple[float, float, float]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, vocabulary, generator=generator) * 5
    chosen = {
        row: torch.randperm(vocabulary, generator=generator)[: 1 + seed % vocabulary].tolist() for row in (3, 0, 2)
    }
    lists = ragged(chosen)
    counts = torch.randint(0, 5, lists[2].shape, generator=generator)
    values = torch.randn(lists[2].shape, generator=generator)
    results = []
    for version in (native, reference):
        edited = logits.clone()
        version.penalise_(edited, torch.tensor([strengths] * 3), *lists, counts)
        version.add_bias_(edited, *lists, values)
        version.restrict_(edited, *ragged({0: chosen[0][::2]}))
        results.append(edited)
    assert torch.equal(*results)


def logprobs(
    version: ModuleType,
    logits: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    top: int,
    ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    given = rows.new_empty((len(rows), 0)) if ids is None else ids
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    found = version.logprobs(logits, rows, tokens, top, given)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("vocabulary", [5, 64, 1000, 49152])
def test_logprobs_equal_log_softmax_and_topk(version: ModuleType, vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(6, vocabulary, generator=generator) * 4
    rows = torch.tensor([4, 0, 5])
    tokens = torch.tensor([0, vocabulary - 1, int(logits[5].argmax())])
    values, ranks, best, best_values = logprobs(version, logits, rows, tokens, 5)
    exact = logits.double().log_softmax(-1)[rows]
    expected = exact.topk(5)
    torch.testing.assert_close(values.double(), exact.gather(1, tokens[:, None])[:, 0], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(best_values.double(), expected.values, rtol=2e-6, atol=2e-6)
    assert torch.equal(best, expected.indices)
    own = logits[rows].gather(1, tokens[:, None])
    assert ranks.tolist() == ((logits[rows] > own).sum(-1) + 1).tolist()
    assert ranks[2] == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_ranks_and_alternatives_break_ties_by_lowest_id(version: ModuleType) -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]])
    for token, rank in enumerate([3, 1, 4, 2, 5]):
        _, ranks, best, _ = logprobs(version, logits, torch.tensor([0]), torch.tensor([token]), 4)
        assert ranks.tolist() == [rank]
        assert best.tolist() == [[1, 3, 0, 2]]


@pytest.mark.parametrize("version", VERSIONS)
def test_impossible_tokens_come_last_with_no_probability(version: ModuleType) -> None:
    inf, nan = math.inf, math.nan
    logits = torch.tensor([[-inf, nan, 2.0, -inf], [nan] * 4, [0.0, inf, 3.0, inf]])
    rows = torch.arange(3)
    values, ranks, best, best_values = logprobs(version, logits, rows, torch.tensor([1, 2, 3]), 4)
    assert values[:2].tolist() == [-inf, -inf]
    assert values[2].item() == pytest.approx(-math.log(2))
    assert ranks.tolist() == [3, 3, 2]
    assert best.tolist() == [[2, 0, 1, 3], [0, 1, 2, 3], [1, 3, 2, 0]]
    assert best_values[0].tolist() == [0.0, -inf, -inf, -inf]
    assert best_values[1].tolist() == [-inf] * 4
    assert best_values[2, 2:].tolist() == [-inf, -inf]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_reads_the_same_log_probabilities_in_any_batch(version: ModuleType) -> None:
    logits = torch.randn(40, 3001, generator=torch.Generator().manual_seed(1)) * 3
    rows, tokens = torch.arange(40), torch.arange(40) * 70
    together = logprobs(version, logits, rows, tokens, 3)
    for row in range(40):
        alone = logprobs(version, logits[row : row + 1], torch.tensor([0]), tokens[row : row + 1], 3)
        for a, b in zip(together, alone, strict=True):
            assert torch.equal(a[row], b[0])


@needs_native
@settings(max_examples=examples(50, 500), deadline=None)
@given(vocabulary=st.integers(1, 400), top=st.integers(0, 20), seed=st.integers(0, 2**31), ties=st.booleans())
def test_native_ranks_and_alternatives_equal_the_definition(vocabulary: int, top: int, seed: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, vocabulary, generator=generator) * 2
    if ties:
        logits = logits.round()
        logits[logits < -3] = -math.inf
        logits[logits > 5] = math.inf
    rows = torch.arange(3)
    tokens = torch.randint(0, vocabulary, (3,), generator=generator)
    ids = torch.randint(0, vocabulary, (3, seed % 5), generator=generator)
    top = min(top, vocabulary)
    found, expected = (logprobs(each, logits, rows, tokens, top, ids) for each in (native, reference))
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[2], expected[2])
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[3], expected[3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("top", [0, 2])
def test_given_tokens_follow_the_best_with_their_log_probabilities(version: ModuleType, top: int) -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1)) * 3
    logits[1, 7] = -math.inf
    rows, ids = torch.tensor([3, 1]), torch.tensor([[299, 0, 0], [7, 8, 299]])
    _, _, found, values = logprobs(version, logits, rows, torch.tensor([5, 6]), top, ids)
    assert torch.equal(found[:, top:], ids)
    exact = logits.double().log_softmax(-1)[rows]
    torch.testing.assert_close(values.double(), exact.gather(1, found), rtol=2e-6, atol=2e-6)
    assert values[1, top] == -math.inf
    _, _, best, best_values = logprobs(version, logits, rows, torch.tensor([5, 6]), 300)
    for line, column in ((0, top), (1, top + 1)):  # bit for bit what the same token has among the best
        place = best[line].tolist().index(int(found[line, column]))
        assert values[line, column] == best_values[line, place]


@pytest.mark.parametrize("version", VERSIONS)
def test_given_tokens_outside_the_vocabulary_are_an_error(version: ModuleType) -> None:
    zero = torch.tensor([0])
    with pytest.raises((IndexError, RuntimeError)):
        logprobs(version, torch.zeros(2, 4), zero, zero, 1, torch.tensor([[4]]))


def test_given_tokens_need_a_line_for_each_row() -> None:
    rows = torch.arange(2)
    with pytest.raises(ValueError, match="a line for each of 2 rows"):
        sampling.logprobs(torch.zeros(2, 4), rows, rows, 0, torch.zeros((1, 3), dtype=torch.int64))


@pytest.mark.parametrize("version", VERSIONS)
def test_log_probabilities_outside_the_logits_are_an_error(version: ModuleType) -> None:
    for row, token in ((2, 0), (0, 4)):
        with pytest.raises((IndexError, RuntimeError)):
            logprobs(version, torch.zeros(2, 4), torch.tensor([row]), torch.tensor([token]), 1)


def test_more_alternatives_than_tokens_give_all_of_them() -> None:
    _, _, best, values = sampling.logprobs(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([0]), 20)
    assert best.tolist() == [[0, 1, 2]]
    assert values.shape == (1, 3)
