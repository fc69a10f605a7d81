import pytest
import torch
from torch import Tensor

from stentor.kernels.embedding import choose, embedding
from stentor.kernels.embedding.tunables import tunables
from stentor.kernels.tuning import Config, Tunable, overridden
from stentor.tests.kernels.gpu import DEVICE, TRITON_FLOATS
from stentor.tests.kernels.helpers import assert_same_bits, normal


def tokens_of(*tokens: int) -> Tensor:
    return torch.tensor(tokens, dtype=torch.int64, device=DEVICE)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", TRITON_FLOATS)
@pytest.mark.parametrize("width", [1, 30, 64, 1500])
@pytest.mark.parametrize("tokens", [(), (2,), (0, 6, 3, 3, 1)])
@pytest.mark.parametrize("scale", [1.0, 0.37])
def test_the_triton_rows_are_the_reference_bit_by_bit(
    dtype: torch.dtype, width: int, tokens: tuple[int, ...], scale: float
) -> None:
    table = normal(7, width, seed=1, dtype=dtype).to(DEVICE)
    assert choose(table, "triton") == "triton"
    out = embedding(tokens_of(*tokens), table, scale, variant="triton")
    assert_same_bits(out, embedding(tokens_of(*tokens), table, scale, variant="reference"))


@pytest.mark.triton
@pytest.mark.parametrize("block", [16, 64, 128])
def test_a_row_longer_or_shorter_than_a_tile_comes_whole(block: int) -> None:
    table = normal(5, 100, seed=1).to(DEVICE)
    with overridden("embedding", Config.of(BLOCK=block)):
        assert_same_bits(embedding(tokens_of(4, 0), table, variant="triton"), table[[4, 0]])


@pytest.mark.triton
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_token_that_has_no_row_gives_zeros(scale: float) -> None:
    table = normal(7, 40, seed=1).to(DEVICE)
    out = embedding(tokens_of(-1, 3, 7, 2**40, -(2**62)), table, scale, variant="triton")
    assert not out[[0, 2, 3, 4]].any()
    assert_same_bits(out[1], table[3] * scale)


@pytest.mark.triton
def test_tokens_and_rows_may_be_strided() -> None:
    table = normal(7, 90, seed=1).to(DEVICE)[:, 11:75]
    tokens = tokens_of(6, 9, 2, 9, 0, 9)[::2]
    assert_same_bits(embedding(tokens, table, variant="triton"), table[[6, 2, 0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_product_is_rounded_to_the_dtype_once(dtype: torch.dtype) -> None:
    table, tokens = normal(9, 64, seed=1, dtype=dtype), torch.tensor([8, 1])
    assert choose(table) == "reference"
    assert_same_bits(embedding(tokens, table), table[[8, 1]])
    assert_same_bits(embedding(tokens, table, 7.3), (table[[8, 1]].double() * torch.tensor(7.3).double()).to(dtype))


@pytest.mark.parametrize("token", [-1, 7])
def test_a_token_that_has_no_row_is_an_error_on_the_cpu(token: int) -> None:
    with pytest.raises(IndexError, match="outside the table's 7 rows"):
        embedding(torch.tensor([0, token]), torch.ones(7, 4))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \[T\] int64"):
        embedding(torch.tensor([1], dtype=torch.int32), torch.ones(7, 4))
    with pytest.raises(ValueError, match=r"must be \[T\] int64"):
        embedding(torch.tensor([[1]]), torch.ones(7, 4))
    with pytest.raises(ValueError, match=r"must be \[V, H\]"):
        embedding(torch.tensor([1]), torch.ones(7, 4, 2))
    with pytest.raises(ValueError, match="must be contiguous"):
        embedding(torch.tensor([1]), torch.ones(4, 7).T)


@pytest.mark.parametrize("tunable", tunables(), ids=lambda tunable: f"{tunable.operation} {tunable.key}")
@pytest.mark.gpu
def test_every_candidate_of_the_tuner_runs(tunable: Tunable) -> None:
    call = tunable.workload(torch.device(DEVICE))
    for config in tunable.candidates:
        with overridden(tunable.operation, config):
            call()
    torch.cuda.synchronize()
