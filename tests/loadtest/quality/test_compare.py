"""The numbers that the quality check tells are what they are said to be."""

import math

import numpy as np
import pytest
import torch

from stentor.loadtest.quality.compare import Agreement, Comparison, divergence
from stentor.loadtest.quality.ours import Scores

VOCAB = 12


def _random_logprobs(seed: int, rows: int = 30) -> torch.Tensor:
    return torch.log_softmax(2 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)), dim=1)


def _scores(logprobs: torch.Tensor, window: list[int], top: int = VOCAB) -> Scores:
    best = logprobs.topk(top, dim=1)
    actual = logprobs.gather(1, torch.tensor(window[1:])[:, None])[:, 0]
    return Scores(actual.double().numpy(), best.indices.numpy(), best.values.double().numpy())


def _window(rows: int = 30) -> list[int]:
    return [int(token) for token in np.random.default_rng(3).integers(0, VOCAB, rows + 1)]


def _compare(ours: torch.Tensor, theirs: torch.Tensor, top: int = VOCAB) -> Agreement:
    comparison, window = Comparison(), _window()
    comparison.add(window, _scores(ours, window, top), theirs)
    return comparison.result()


def test_a_model_agrees_with_itself() -> None:
    same = _random_logprobs(1)
    found = _compare(same, same, top=4)
    assert found.difference == pytest.approx(0, abs=1e-12)
    assert found.same_greedy == 1.0
    assert found.divergence_p99 == pytest.approx(0, abs=1e-6)
    assert found.within(1e-9)


def test_perplexities_and_divergences_are_torchs() -> None:
    ours, theirs, window = _random_logprobs(1), _random_logprobs(2), _window()
    found = _compare(ours, theirs)
    targets = torch.tensor(window[1:])
    assert found.perplexity == pytest.approx(math.exp(torch.nn.functional.nll_loss(ours, targets)), rel=1e-5)
    assert found.reference_perplexity == pytest.approx(
        math.exp(torch.nn.functional.nll_loss(theirs, targets)), rel=1e-5
    )
    assert found.difference == pytest.approx(found.perplexity / found.reference_perplexity - 1)
    expected = torch.nn.functional.kl_div(ours, theirs, log_target=True, reduction="batchmean").item()
    assert found.divergence_mean == pytest.approx(expected, rel=1e-4)
    assert found.same_greedy == (ours.argmax(1) == theirs.argmax(1)).float().mean().item()
    assert not found.within(abs(found.difference) * 0.9)
    assert found.within(abs(found.difference) * 1.1)


def test_fewer_listed_tokens_never_make_a_divergence_larger() -> None:
    ours, theirs = _random_logprobs(1), _random_logprobs(2)
    means = [_compare(ours, theirs, top).divergence_mean for top in (1, 3, 6, VOCAB)]
    assert means == sorted(means)
    assert means[0] > 0


def test_mass_that_moved_out_of_the_list_is_seen() -> None:
    theirs, ours = np.log([[0.5, 0.4]]), np.log([[0.3, 0.2]])
    expected = 0.5 * math.log(5 / 3) + 0.4 * math.log(2) + 0.1 * math.log(0.1 / 0.5)
    assert divergence(theirs, ours) == pytest.approx([expected])


def test_what_is_not_a_number_is_never_within_the_limit() -> None:
    broken = _random_logprobs(1)
    broken[4] = math.nan
    assert not _compare(broken, _random_logprobs(1)).within(1e9)


def test_windows_of_another_length_are_refused() -> None:
    window = _window()
    with pytest.raises(ValueError, match="expected 30 positions, got 29 and 30"):
        Comparison().add(window, _scores(_random_logprobs(1)[:-1], window[:-1]), _random_logprobs(2))
