import pytest
import torch

from stentor.kernels import rms_norm
from stentor.kernels.launching.dry_run import dry_run
from stentor.kernels.launching.launch import cdiv, interpreted, next_power_of_2
from stentor.kernels.variants import force_variant, select_variant


def test_sizes_are_rounded_up() -> None:
    assert [cdiv(number, 4) for number in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [next_power_of_2(number) for number in (1, 2, 3, 4, 5, 64, 65)] == [1, 2, 4, 4, 8, 64, 128]


def test_auto_takes_the_first_variant_that_can_run() -> None:
    assert select_variant("auto", triton=None, native=None) == "triton"
    assert select_variant("auto", triton="no", native=None) == "native"
    assert select_variant("auto", triton="no", native="no") == "reference"
    assert select_variant("auto") == "reference"


def test_a_variant_asked_for_by_name_runs_or_says_why_it_cannot() -> None:
    assert select_variant("native", triton=None, native=None) == "native"
    assert select_variant("reference", triton=None, native=None) == "reference"
    with pytest.raises(ValueError, match="the triton variant cannot run: it runs on CUDA"):
        select_variant("triton", triton="it runs on CUDA", native=None)
    with force_variant("native"), pytest.raises(ValueError, match="the native variant cannot run: no compiler"):
        select_variant("auto", triton=None, native="no compiler")


def test_the_cpu_never_takes_the_interpreter_unasked() -> None:
    x = torch.ones(2, 8, dtype=torch.float16)
    assert torch.equal(rms_norm(x, torch.ones(8, dtype=torch.float16), 0.0), x)


@pytest.mark.triton
@pytest.mark.skipif(not interpreted(), reason="compiles here")
def test_a_dry_run_is_refused_where_triton_interprets() -> None:
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"), dry_run():
        pass
