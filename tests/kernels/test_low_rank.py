"""Low-rank products of adapters: every row gets those of its own, whatever shares its batch."""

import pytest
import torch

from stentor.kernels.low_rank import AdapterRows, LowRank, LowRankSum, add_low_rank_, choose

CPU = torch.device("cpu")
VARIANTS = pytest.mark.parametrize("variant", ["reference", "native"])


def adapter(seed: int, inputs: int, shapes: list[tuple[int, int, int]]) -> LowRankSum:
    """Of (rank, outputs, column) of each part."""
    generator = torch.Generator().manual_seed(seed)
    parts = [
        LowRank(
            torch.randn(rank, inputs, generator=generator),
            torch.randn(outputs, rank, generator=generator),
            0.5 + rank,
            column,
        )
        for rank, outputs, column in shapes
    ]
    return LowRankSum.packed(parts)


def expected(y: torch.Tensor, x: torch.Tensor, of_row: list[int], sums: dict[int, LowRankSum]) -> torch.Tensor:
    """The definition, in float64."""
    found = y.double()
    for row, number in enumerate(of_row):
        for part in sums[number].parts if number in sums else ():
            added = part.up.double() @ (part.down.double() @ x[row].double()) * part.scale
            found[row, part.column : part.column + len(added)] += added
    return found


@VARIANTS
def test_each_row_gets_what_its_own_adapter_adds(variant: str) -> None:
    torch.manual_seed(0)
    inputs, outputs = 37, 71
    shapes = [[(4, 40, 0), (7, 20, 40)], [(1, 71, 0)], [(16, 11, 60)]]
    sums = {number: adapter(number, inputs, each) for number, each in enumerate(shapes)}
    of_row = [0, -1, 2, 1, 0, 3, *[1] * 40, 2]
    x, y = torch.randn(len(of_row), inputs), torch.randn(len(of_row), outputs)
    rows = AdapterRows.of(of_row, [1] * len(of_row), CPU)
    assert rows is not None
    given = [sums.get(number) for number in rows.adapters]
    assert choose(y, x, given, variant) == variant  # type: ignore[arg-type]
    wanted = expected(y, x, of_row, sums)
    found = add_low_rank_(y.clone(), x, rows, given, variant=variant)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-3)
    for row in (1, 5):
        assert torch.equal(found[row], y[row]), "a row whose adapter adds nothing has changed"


@VARIANTS
def test_a_row_has_the_same_bits_alone_and_beside_others(variant: str) -> None:
    torch.manual_seed(1)
    sums = [adapter(1, 64, [(8, 96, 0)])]
    x, y = torch.randn(23, 64), torch.zeros(23, 96)
    every = AdapterRows.of([5], [23], CPU)
    alone = AdapterRows.of([5], [1], CPU)
    assert every is not None
    assert alone is not None
    whole = add_low_rank_(y.clone(), x, every, sums, invariant=True, variant=variant)  # type: ignore[arg-type]
    for row in (0, 7, 22):
        own = slice(row, row + 1)
        one = add_low_rank_(y[own].clone(), x[own], alone, sums, invariant=True, variant=variant)  # type: ignore[arg-type]
        assert torch.equal(whole[own], one)


def test_rows_are_sorted_by_adapter_and_keep_their_order_within_one() -> None:
    rows = AdapterRows.of([3, -1, 0, 3], [2, 1, 1, 2], CPU)
    assert rows is not None
    assert [(adapter, own.tolist()) for adapter, own in rows] == [(0, [3]), (3, [0, 1, 4, 5])]
    assert AdapterRows.of([-1, -1], [1, 2], CPU) is None


def test_matrices_that_do_not_fit_are_refused() -> None:
    rows = AdapterRows.of([0], [2], CPU)
    assert rows is not None
    for shape in ([(2, 9, 0)], [(2, 4, 5)]):
        with pytest.raises(ValueError, match="do not fit"):
            add_low_rank_(torch.zeros(2, 8), torch.zeros(2, 6), rows, [adapter(0, 6, shape)])
    with pytest.raises(ValueError, match="do not fit"):
        add_low_rank_(torch.zeros(2, 8), torch.zeros(2, 5), rows, [adapter(0, 6, [(2, 8, 0)])])
