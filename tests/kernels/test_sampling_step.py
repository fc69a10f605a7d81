"""The sampler over tables: the definition against the engine's sampler, and Triton against the definition."""

import math
from collections.abc import Sequence

import pytest
import torch

from stentor.engine.worker.sampling.sampler import Sampler
from stentor.kernels import sampling
from stentor.kernels.sampling import SamplerTables, pack_params
from stentor.kernels.sampling.tables import IN_PROMPT, INDEX, PARAMS, pack_mask, unpack_mask
from stentor.kernels.variants import Choice
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.kernels.gpu import DEVICE
from stentor.tests.kernels.sampling_cases import make_logits, set_bias, set_mask, set_seen, small_tiles

# numpy, which interprets, remarks on arithmetic with infinities
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero) encountered:RuntimeWarning")

VOCABULARY = 150
STEPS = 4
PROMPT = (3, 7, 7, 149, 20)

ROWS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(8, temperature=0.0),
    "neutral": SamplingParams(8),
    "filters": SamplingParams(8, temperature=0.8, top_k=30, top_p=0.9, min_p=0.01),
    "penalties": SamplingParams(
        8, temperature=0.3, repetition_penalty=1.7, frequency_penalty=0.5, presence_penalty=-0.4
    ),
    "presence alone": SamplingParams(8, temperature=0.0, presence_penalty=2.0),
    "bias": SamplingParams(8, logit_bias=((5, 6.0), (140, 5.5), (9, -100.0), (900, 3.0)), top_p=0.9),
    "bans": SamplingParams(8, temperature=0.0, banned_token_ids=(11, 100, 150)),
    "allowed": SamplingParams(8, allowed_token_ids=(140, 33, 34, 2, 700), banned_token_ids=(33,)),
    "min tokens": SamplingParams(
        8, min_tokens=2, allowed_token_ids=(140, 33), eos_token_ids=(33,), logit_bias=((33, 30.0),)
    ),
    "everything": SamplingParams(
        8,
        min_tokens=3,
        temperature=1.3,
        repetition_penalty=0.6,
        logit_bias=((64, 3.0), (127, 3.0), (128, 3.0), (0, 40.0)),
        banned_token_ids=(1,),
        stop_token_ids=(0,),
        min_p=0.02,
    ),
    "nothing is left": SamplingParams(8, allowed_token_ids=(50, 60), banned_token_ids=(50, 60)),
}


def enter(
    tables: SamplerTables, slot: int, params: SamplingParams, seed: int, tokens: Sequence[int], prompt_len: int
) -> None:
    """What a runner does for a row."""
    banned, ends = params.banned_token_ids, (*params.eos_token_ids, *params.stop_token_ids)
    index = len(tokens) - prompt_len
    masked = params.allowed_token_ids is not None or bool(banned)
    if masked:
        set_mask(tables, slot, params.allowed_token_ids, banned)
    if params.min_tokens:
        set_mask(tables, slot, params.allowed_token_ids, (*banned, *ends), early=True)
    if params.needs_penalties:
        prompt = tokens[:prompt_len] if params.repetition_penalty != 1.0 else ()
        set_seen(tables, slot, prompt, tokens[prompt_len:])
    allowed = sorted(set(params.allowed_token_ids or ()) - set(banned))
    packed = pack_params(
        seed=seed,
        index=index,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        min_tokens=params.min_tokens,
        repetition=params.repetition_penalty,
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
        bias_count=set_bias(tables, slot, dict(params.logit_bias)),
        mask=masked,
        early_mask=params.min_tokens > 0,
        fallback=allowed[0] if allowed else 0,
    )
    tables.set_params(slot, packed)


def compare_with_the_engine(
    rows: Sequence[SamplingParams], dtype: torch.dtype, kind: str, variant: Choice, steps: int = STEPS
) -> None:
    """Rows enter, some with outputs, in slots that are not their order, and draw for some steps."""
    place = torch.device(DEVICE if variant == "triton" else "cpu")
    engine = Sampler(VOCABULARY, len(rows), torch.device("cpu"))
    tables = SamplerTables.empty(len(rows), VOCABULARY, place)
    order = [(3 * position + 1) % len(rows) for position in range(len(rows))]
    assert sorted(order) == list(range(len(rows)))
    for position, (slot, params) in enumerate(zip(order, rows, strict=True)):
        tokens = [*PROMPT, 5, 7][: len(PROMPT) + position % 3]
        engine.add(slot, params, seed=2**63 + slot, tokens=tokens, prompt_len=len(PROMPT))
        enter(tables, slot, params, 2**63 + slot, tokens, len(PROMPT))
    slots = torch.tensor([*order, -1], device=place)
    out = torch.full((len(rows) + 1,), -7, device=place)
    for step in range(steps):
        logits = make_logits(kind, len(rows) + 1, VOCABULARY, step).to(dtype)
        expected, _ = engine.sample(logits[:-1].to(torch.float32, copy=True), order)
        on_device = logits.to(place)
        assert sampling.choose_step(on_device, variant) == variant
        sampling.step_(on_device, slots, tables, out, variant=variant)
        assert out.tolist() == [*expected, 0], f"at step {step}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["normal", "ties", "peaked"])
def test_the_definition_draws_what_the_engine_draws(kind: str, dtype: torch.dtype) -> None:
    compare_with_the_engine(list(ROWS.values()), dtype, kind, "reference")


@pytest.mark.triton
@pytest.mark.parametrize(
    ("dtype", "room"),
    [(torch.float32, 64), (torch.float16, 10**6), pytest.param(torch.bfloat16, 64, marks=pytest.mark.gpu)],
    ids=str,
)
def test_triton_draws_what_the_engine_draws(dtype: torch.dtype, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch, room)
    compare_with_the_engine(list(ROWS.values()), dtype, "normal", "triton", steps=2)


@pytest.mark.parametrize("variant", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
def test_padding_writes_zero_and_changes_nothing(variant: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    if variant == "triton":
        small_tiles(monkeypatch, 10**6)
    place = DEVICE if variant == "triton" else "cpu"
    tables = SamplerTables.empty(2, 40, torch.device(place))
    enter(tables, 0, SamplingParams(8, presence_penalty=1.0), 1, PROMPT[:2], 2)
    before = [tensor.clone() for tensor in tables.tensors]
    out = torch.full((2,), 9, device=place)
    slots = torch.tensor([-1, -1], device=place)
    sampling.step_(torch.full((2, 40), math.nan, device=place), slots, tables, out, variant=variant)
    assert out.tolist() == [0, 0]
    for tensor, same in zip(tables.tensors, before, strict=True):
        assert torch.equal(tensor, same)


@pytest.mark.parametrize("variant", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
def test_where_nothing_can_be_drawn_the_lowest_allowed_id_is(variant: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    if variant == "triton":
        small_tiles(monkeypatch, 10**6)
    place = DEVICE if variant == "triton" else "cpu"
    tables = SamplerTables.empty(4, 150, torch.device(place))
    set_mask(tables, 0, [149, 95])
    set_mask(tables, 1, [])
    tables.set_params(0, pack_params(seed=1, mask=True, fallback=-1))
    tables.set_params(1, pack_params(seed=1, mask=True, fallback=-1))
    tables.set_params(2, pack_params(seed=1, fallback=12))
    tables.set_params(3, pack_params(seed=1, fallback=-1))
    out = torch.empty(4, dtype=torch.int64, device=place)
    logits = torch.full((4, 150), -math.inf, device=place)
    sampling.step_(logits, torch.arange(4, device=place), tables, out, variant=variant)
    assert out.tolist() == [95, 0, 12, 0]
    assert tables.params[:, INDEX].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("variant", ["reference", pytest.param("triton", marks=pytest.mark.triton)])
def test_rows_of_params_go_to_their_slots(variant: Choice) -> None:
    place = DEVICE if variant == "triton" else "cpu"
    tables = SamplerTables.empty(5, 40, torch.device(place))
    before = tables.params.clone()
    packed = torch.tensor([pack_params(seed=2**64 - 1, index=slot) for slot in range(3)])
    wider = torch.cat((packed, packed), 1)[:, :PARAMS].to(place)
    sampling.write_params_(tables, torch.tensor([4, -1, 0], device=place), wider, variant=variant)
    assert torch.equal(tables.params[[4, 0]], wider[[0, 2]])
    assert torch.equal(tables.params[1:4], before[1:4])


def test_seen_holds_the_prompt_and_the_counts_of_the_output() -> None:
    tables = SamplerTables.empty(1, 10, torch.device("cpu"))
    set_seen(tables, 0, [1, 2, 2, 77], [2, 3, 3, -1])
    assert tables.seen[0].tolist() == [0, IN_PROMPT, IN_PROMPT + 1, 2, 0, 0, 0, 0, 0, 0]
    set_seen(tables, 0, [], [5])
    assert tables.seen[0].nonzero().tolist() == [[5]]


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, 100])
def test_masks_hold_a_bit_a_token(vocabulary: int) -> None:
    allowed = [token for token in range(vocabulary + 5) if token % 3 == 0 or token == 31]
    words = pack_mask(vocabulary, allowed, banned=[0, 99])
    expected = [token in allowed and token not in (0, 99) for token in range(vocabulary)]
    assert unpack_mask(words, vocabulary).tolist() == expected
    assert unpack_mask(pack_mask(vocabulary, None, [vocabulary - 1]), vocabulary).sum() == vocabulary - 1


def test_tables_say_what_they_take() -> None:
    small = SamplerTables.empty(2, 100, torch.device("cpu"), penalties=False)
    whole = SamplerTables.empty(2, 100, torch.device("cpu"))
    assert whole.nbytes - small.nbytes == 2 * 100 * 4


def test_what_does_not_fit_is_refused() -> None:
    tables = SamplerTables.empty(2, 10, torch.device("cpu"))
    slots, out = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="11 tokens"):
        sampling.step_(torch.zeros(1, 11), slots, tables, out)
    with pytest.raises(ValueError, match="do not fit"):
        sampling.step_(torch.zeros(2, 10), slots, tables, out)
    with pytest.raises(ValueError, match="do not fit"):
        sampling.step_(torch.zeros(1, 10, dtype=torch.float64), slots, tables, out)
    with pytest.raises(ValueError, match="slots must be int64"):
        sampling.step_(torch.zeros(1, 10), slots.int(), tables, out)
    with pytest.raises(ValueError, match="what is written"):
        sampling.step_(torch.zeros(1, 10), slots, tables, out.int())
    with pytest.raises(ValueError, match="rows adjacent"):
        sampling.write_params_(tables, slots, torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="must be int64"):
        sampling.write_params_(tables, slots, torch.zeros(1, PARAMS))
