"""Judging drafts: the same output as without them, the right distribution, and Triton against the definition."""

import pytest
import torch

from stentor.kernels import sampling
from stentor.kernels.sampling import SamplerTables, pack_params
from stentor.kernels.sampling.tables import INDEX
from stentor.kernels.variants import Choice
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.sampling_cases import (
    assert_distributed,
    make_logits,
    set_bias,
    set_mask,
    set_seen,
    small_tiles,
)

pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero) encountered:RuntimeWarning")

VOCABULARY = 150
DRAFTED = 2


def make_tables(place: str, slots: int = 6) -> SamplerTables:
    """Greedy, neutral, filtered, penalised, masked until two tokens are out, and biased."""
    tables = SamplerTables.empty(slots, VOCABULARY, torch.device(place))
    set_seen(tables, 3, [1, 2, 3], [4])
    set_mask(tables, 4, None, [5])
    set_mask(tables, 4, range(20, 60), early=True)
    rows = [
        pack_params(seed=1, temperature=0.0),
        pack_params(seed=2, index=5),
        pack_params(seed=3, temperature=0.7, top_k=40, top_p=0.9),
        pack_params(seed=4, temperature=0.2, repetition=2.0, frequency=3.0, presence=3.0),
        pack_params(seed=5, index=0, min_tokens=2, mask=True, early_mask=True, fallback=-1),
        pack_params(seed=6, top_p=0.8, bias_count=set_bias(tables, 5, {7: 20.0, 140: 19.0})),
    ]
    for slot, row in enumerate(rows):
        tables.set_params(slot, row)
    return tables


def without_drafts(logits: torch.Tensor, slots: torch.Tensor, tables: SamplerTables) -> torch.Tensor:
    """The tokens [S, k + 1] that steps draw one after the other."""
    columns = []
    for position in range(logits.shape[1]):
        out = torch.empty_like(slots)
        sampling.step_(logits[:, position].clone(), slots, tables, out, variant="reference")
        columns.append(out)
    return torch.stack(columns, 1)


def verify(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    draft_probs: torch.Tensor | None,
    slots: torch.Tensor,
    tables: SamplerTables,
    variant: Choice,
) -> tuple[torch.Tensor, torch.Tensor]:
    place = tables.params.device
    tokens = torch.full(logits.shape[:2], -9, device=place)
    accepted = torch.full(slots.shape, -9, device=place)
    q = None if draft_probs is None else draft_probs.to(place)
    on = [tensor.to(place, copy=True) for tensor in (logits, drafts, slots)]
    sampling.verify_(on[0], on[1], q, on[2], tables, tokens, accepted, variant=variant)
    return tokens.cpu(), accepted.cpu()


@pytest.mark.parametrize(
    ("variant", "dtype", "wrong_at"),
    [
        *(("reference", torch.float32, place) for place in range(DRAFTED + 1)),
        ("reference", torch.bfloat16, 1),
        *(pytest.param("triton", torch.float32, place, marks=pytest.mark.triton) for place in (1, 2)),
        pytest.param("triton", torch.float16, 0, marks=pytest.mark.triton),
    ],
    ids=str,
)
def test_the_output_is_that_of_steps_without_drafts(
    variant: Choice, dtype: torch.dtype, wrong_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variant == "triton":
        small_tiles(monkeypatch, 10**6)
    slots = torch.tensor([4, 2, -1, 0, 3, 1, 5])
    logits = make_logits("normal", 7 * (DRAFTED + 1), VOCABULARY, wrong_at).view(7, DRAFTED + 1, -1).to(dtype)
    plain = make_tables("cpu")
    expected = without_drafts(logits, slots, plain)
    drafts = expected[:, :DRAFTED].clone()
    if wrong_at < DRAFTED:
        drafts[:, wrong_at] = (drafts[:, wrong_at] + 1) % VOCABULARY
        drafts[0, wrong_at] = -1
    tables = make_tables(DEVICE if variant == "triton" else "cpu")
    tokens, accepted = verify(logits, drafts, None, slots, tables, variant)

    active = slots >= 0
    assert accepted.tolist() == [wrong_at if slot >= 0 else 0 for slot in slots.tolist()]
    assert torch.equal(tokens[active, : wrong_at + 1], expected[active, : wrong_at + 1])
    assert (tokens[active, wrong_at + 1 :] == -1).all()
    assert (tokens[~active] == 0).all()
    stepped = make_tables("cpu")
    without_drafts(logits[:, : wrong_at + 1], slots, stepped)
    assert torch.equal(tables.params.cpu(), stepped.params)
    assert torch.equal(tables.seen.cpu(), stepped.seen)


def test_no_drafts_make_a_step() -> None:
    slots = torch.arange(6)
    logits = make_logits("normal", 6, VOCABULARY, 3)[:, None]
    expected = without_drafts(logits, slots, make_tables("cpu"))
    tokens, accepted = verify(logits, torch.empty((6, 0), dtype=torch.int64), None, slots, make_tables("cpu"), "auto")
    assert torch.equal(tokens, expected)
    assert accepted.tolist() == [0] * 6


@pytest.mark.parametrize("row_params", [{}, {"top_k": 3}, {"top_p": 0.7, "temperature": 1.5}])
def test_probable_drafts_leave_the_distribution_as_it_is(row_params: dict[str, float]) -> None:
    sequences, vocabulary = 2000, 8
    generator = torch.Generator().manual_seed(4)
    target = torch.tensor([[1.0, 0.0, -1.0, 2.0, 0.5, -3.0, 1.5, -0.5], [0.0, 1.0, 2.0, -1.0, 0.3, 0.1, -2.0, 1.2]])
    target = torch.cat((target, target[:1].flip(1)))  # two drafts and what follows
    q = torch.softmax(torch.randn(2, vocabulary, generator=generator), -1)
    drafts = torch.stack([torch.multinomial(row, sequences, True, generator=generator) for row in q], 1)
    tables = SamplerTables.empty(sequences, vocabulary, torch.device("cpu"))
    packed = torch.tensor([pack_params(seed=slot * 77, index=9, **row_params) for slot in range(sequences)])  # type: ignore[arg-type]
    slots = torch.arange(sequences)
    sampling.write_params_(tables, slots, packed)
    tokens, accepted = verify(
        target.repeat(sequences, 1, 1), drafts, q.repeat(sequences, 1, 1), slots, tables, "reference"
    )
    assert torch.equal(tables.params[:, INDEX], 10 + accepted)
    z = target.double() / row_params.get("temperature", 1.0)
    p = torch.softmax(z, -1)
    if "top_k" in row_params:
        p = torch.where(p >= p.topk(3).values[:, -1:], p, 0.0)
    if "top_p" in row_params:
        ordered, order = p.sort(descending=True)
        p = torch.zeros_like(p).scatter(1, order, torch.where(ordered.cumsum(1) - ordered < 0.7, ordered, 0.0))
    p = p / p.sum(1, keepdim=True)
    for position in range(3):
        reached = accepted >= position
        assert_distributed(torch.bincount(tokens[reached, position], minlength=vocabulary), p[position])
    rate = torch.minimum(p[0], q[0].double()).sum().item()
    assert (accepted >= 1).double().mean().item() == pytest.approx(rate, abs=5 * (0.25 / sequences) ** 0.5)


@pytest.mark.proof(each="dtype")
@pytest.mark.triton
@pytest.mark.parametrize(("dtype", "room", "seed"), [(torch.float32, 64, 1), (torch.float16, 10**6, 2)], ids=str)
def test_triton_verifies_probable_drafts_as_the_definition_does(
    dtype: torch.dtype, room: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tiles(monkeypatch, room)
    generator = torch.Generator().manual_seed(seed)
    logits = make_logits("normal", 7 * (DRAFTED + 1), VOCABULARY, seed).view(7, DRAFTED + 1, -1).to(dtype)
    q = torch.softmax(logits[:, :DRAFTED].float() + torch.randn(7, DRAFTED, VOCABULARY, generator=generator) / 2, -1)
    drafts = torch.multinomial(q.flatten(0, 1), 1, generator=generator).view(7, DRAFTED)
    drafts[1, 1] = -1
    slots = torch.tensor([4, 2, -1, 0, 3, 1, 5])
    ours, theirs = make_tables(DEVICE), make_tables("cpu")
    actual = verify(logits, drafts, q, slots, ours, "triton")
    expected = verify(logits, drafts, q, slots, theirs, "reference")
    assert 0 < expected[1].sum() < 6 * DRAFTED
    assert torch.equal(actual[1], expected[1])
    assert torch.equal(actual[0], expected[0])
    assert torch.equal(ours.params.cpu(), theirs.params)
    assert torch.equal(ours.seen.cpu(), theirs.seen)


def test_what_does_not_fit_is_refused() -> None:
    tables, slots = make_tables("cpu"), torch.arange(2)
    logits, drafts = torch.zeros(2, 3, VOCABULARY), torch.zeros(2, 2, dtype=torch.int64)
    q, tokens = torch.zeros(2, 2, VOCABULARY), torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="do not fit"):
        sampling.verify_(logits, drafts[:, :1], None, slots, tables, tokens, slots)
    with pytest.raises(ValueError, match="do not fit"):
        sampling.verify_(logits.transpose(0, 1), tokens, None, slots, tables, tokens, slots)
    with pytest.raises(ValueError, match="drafts must be"):
        sampling.verify_(logits, drafts.int(), None, slots, tables, tokens, slots)
    with pytest.raises(ValueError, match="draft_probs must be float32"):
        sampling.verify_(logits, drafts, q.double(), slots, tables, tokens, slots)
    with pytest.raises(ValueError, match="what is written"):
        sampling.verify_(logits, drafts, q, slots, tables, tokens[:, :2], slots)
