"""Kernels that are started directly are kept by a key, and a key that is too coarse starts the wrong one: here it is
held against what Triton itself specialises."""

import logging
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.kernels.launching import compiled
from stentor.kernels.launching.compiled import Launcher, _classed, _Signature, direct
from stentor.kernels.tuning import Config

CONFIG = Config.of(BLOCK=16)


def _body(a, b, c, d, e, f, g, h, i, MODE, BLOCK):  # type: ignore[no-untyped-def]
    pass


@cache
def _kernel(*, loose: bool = True) -> Any:
    """``loose``: Triton is told not to specialise some of its parameters."""
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    _body.__annotations__ = {"MODE": tl.constexpr, "BLOCK": tl.constexpr}
    if not loose:
        return JITFunction(_body)
    return JITFunction(_body, do_not_specialize=["c", "d"], do_not_specialize_on_alignment=["e", "f"])


@cache
def _binder(kernel: Any) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    return create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 90, 32)))


def _specialisation(kernel: Any, args: tuple[Any, ...]) -> str:
    """Triton's key: types, what is specialised of values, and the options."""
    _, specialisation, options = _binder(kernel)(*args, **CONFIG.sizes, **CONFIG.options)
    return repr(specialisation) + repr(options)  # as text: 1 and True are two constants


def _key(kernel: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    signature = _Signature.of(kernel, args, CONFIG, {})
    assert signature is not None
    return 0, *signature.key(args, [each.data_ptr() for each in signature.take_tensors(args)])


BUFFER = torch.zeros(256, dtype=torch.uint8)
TENSORS = st.builds(
    lambda at, dtype: BUFFER[at * 8 : at * 8 + 64].view(dtype),
    st.integers(0, 5),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int64, torch.float8_e4m3fn]),
)
LIMITS = [bound + off for bound in (0, 1 << 31, -(1 << 31), 1 << 32, 1 << 63) for off in (-1, 0, 1, 16)]
NUMBERS = st.one_of(
    st.integers(-70, 70), st.sampled_from([number for number in LIMITS if -(1 << 63) <= number < 1 << 64])
)
VALUES = st.one_of(TENSORS, NUMBERS, st.floats(), st.booleans(), st.none())
MODES = st.sampled_from([0, 1, 2, 16, True, False, None, "none", "row", 1.0, 0.5])


@st.composite
def _pairs(draw: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments of two launches that differ in little."""
    first = [*(draw(VALUES) for _ in range(9)), draw(MODES)]
    second = list(first)
    for place in draw(st.lists(st.integers(0, 9), max_size=3)):
        again = TENSORS if isinstance(first[place], torch.Tensor) else VALUES
        second[place] = draw(MODES if place == 9 else again)
    return tuple(first), tuple(second)


@settings(deadline=None, max_examples=200)
@given(pair=_pairs())
def test_two_launches_with_one_key_are_one_to_triton(pair: tuple[tuple[Any, ...], tuple[Any, ...]]) -> None:
    one, other = pair
    if [*map(type, one)] == [*map(type, other)]:
        keys = [_key(_kernel(), args) for args in pair]
        if keys[0] == keys[1] or _classed(keys[0]) == _classed(keys[1]):
            assert _specialisation(_kernel(), one) == _specialisation(_kernel(), other)


@settings(deadline=None, max_examples=200)
@given(pair=_pairs())
def test_two_launches_that_are_one_to_triton_have_one_key(pair: tuple[tuple[Any, ...], tuple[Any, ...]]) -> None:
    one, other = pair
    kernel = _kernel(loose=False)
    if [*map(type, one)] == [*map(type, other)] and _specialisation(kernel, one) == _specialisation(kernel, other):
        assert _classed(_key(kernel, one)) == _classed(_key(kernel, other))


@pytest.mark.parametrize("constants", [({"MODE": 1}, {"MODE": True}), ({"MODE": 1}, {"MODE": 1.0})])
def test_constants_that_compare_equal_and_are_of_two_types_are_two(
    started: list[list[Any]], constants: tuple[dict[str, Any], ...]
) -> None:
    launcher = Launcher(_Counted())
    for each in (*constants, *constants):
        launcher.start((1,), (1, 2, 3, 4, 5, 6, 7, 8, 9), CONFIG, each)
    assert len(launcher._signatures) == 2


class _Counted:
    """A kernel that Triton would be asked for each time."""

    pre_run_hooks: tuple[()] = ()

    def __init__(self) -> None:
        self.params = _kernel().params
        self.asked: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.asked.append(options)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What kernels were started with directly, on a device that is not there."""
    calls: list[list[Any]] = []

    class Driver:
        active: Any = None

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 5

    Driver.active = Driver()
    monkeypatch.setattr(compiled, "_drivers", lambda: Driver)
    monkeypatch.setattr(compiled, "starter", lambda _: lambda *given: calls.append(list(given)))
    return calls


def test_a_number_that_triton_does_not_tell_from_the_last_goes_to_the_kernel_that_is_there(
    started: list[list[Any]],
) -> None:
    kernel = _Counted()
    launcher = Launcher(kernel)
    tensor = BUFFER.view(torch.float32)
    for number in (3, 5, 7, 32, 48, 1, 5):  # odd ones, multiples of 16, and one
        launcher.start((2, 3), (tensor, number, 1, 2, None, 4.0, 7, 8, 9), CONFIG, {"MODE": "row"})
    assert len(kernel.asked) == 3
    assert [call[4][1] for call in started] == [5, 7, 48, 5]
    assert started[0][:4] == [2, 3, 1, 5]
    assert started[0][4][0] == tensor.data_ptr()
    assert started[0][4][9:] == ["row", 16]


def test_what_is_kept_of_a_kernel_is_bounded(started: list[list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_KEYS", 8)
    kernel = _Counted()
    launcher = Launcher(kernel)
    for number in range(100):
        launcher.start((1,), (number, 2, 3, 4, 5, 6, 7, 8, 9), CONFIG, {"MODE": 0})
    (signature,) = launcher._signatures.values()
    assert signature is not None
    assert len(signature.starts) <= 8
    assert len(kernel.asked) == 3


@pytest.mark.parametrize("odd", [torch.float32, 1 + 2j, [1], "text", BUFFER.numpy()], ids=repr)
def test_an_argument_of_a_kind_that_is_not_known_goes_tritons_way_each_time(
    started: list[list[Any]], odd: object
) -> None:
    kernel = _Counted()
    launcher = Launcher(kernel)
    for _ in range(3):
        launcher.start((1,), (odd, 2, 3, 4, 5, 6, 7, 8, 9), CONFIG, {"MODE": 0})
    assert len(kernel.asked) == 3
    assert kernel.asked[0] == {"MODE": 0, "BLOCK": 16, **CONFIG.options}
    assert not started


def test_under_a_version_that_was_not_read_every_launch_goes_tritons_way_and_one_line_says_so(
    started: list[list[Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import triton

    monkeypatch.setattr(triton, "__version__", "9.1.0")
    direct.cache_clear()
    try:
        kernel = _Counted()
        launcher = Launcher(kernel)
        with caplog.at_level(logging.WARNING):
            for number in range(5):
                launcher.start((1,), (number, 2, 3, 4, 5, 6, 7, 8, 9.0 * number), CONFIG, {"MODE": number})
    finally:
        direct.cache_clear()
    assert len(kernel.asked) == 5
    assert not started
    assert [record.message for record in caplog.records] == [
        "Triton 9.1.0 is not a version whose kernels can be started directly: each launch takes some 20 µs longer"
    ]
