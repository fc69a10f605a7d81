"""The faults that ``make faults`` puts into the tree find their place in the code as it is."""

import pytest

from stentor.tests.faults import FAULTS, ROOT, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.where.split(":")[0])
def test_a_fault_changes_one_place_and_is_sought_by_tests_that_exist(fault: Fault) -> None:
    source = (ROOT / fault.file).read_text(encoding="utf-8")
    assert source.count(fault.sound) == 1, f"{fault.file} has `{fault.sound}` {source.count(fault.sound)} times"
    assert fault.sound != fault.broken
    assert all((ROOT / tests).exists() for tests in fault.tests)
