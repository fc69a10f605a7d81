"""The check of every compiled kernel's offsets, on kernels that are wrong."""

import pytest

from stentor.tests.compile.offsets import narrow_offsets

_KERNEL = """
    %c128_i32 = arith.constant 128 : i32
    %token = tt.get_program_id x : i32 loc(#loc1)
    %row = arith.muli %token, %stride : i32
    %near = arith.muli %token, %c128_i32 : i32
    %lane = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %rows = tt.splat %row : i32 -> tensor<64xi32>
    %offsets = arith.addi %rows, %lane : tensor<64xi32>
    %wide = arith.extsi %token : i32 to i64
    %far = arith.muli %wide, %long : i64
"""


@pytest.mark.parametrize(
    ("line", "narrow"),
    [
        ("%at = tt.addptr %x, %row : !tt.ptr<bf16>, i32 loc(#loc2)", True),
        ("%at = tt.addptr %xs, %offsets : tensor<64x!tt.ptr<bf16>>, tensor<64xi32>", True),
        ("%at = tt.addptr %x, %near : !tt.ptr<bf16>, i32", False),
        ("%at = tt.addptr %xs, %lane : tensor<64x!tt.ptr<bf16>>, tensor<64xi32>", False),
        ("%at = tt.addptr %x, %far : !tt.ptr<bf16>, i64", False),
    ],
)
def test_products_of_two_numbers_need_64_bits_before_they_are_multiplied(line: str, narrow: bool) -> None:
    found = narrow_offsets(_KERNEL + line)
    assert [each.split(" = ")[0] for each in found] == (["%at"] if narrow else [])
