"""When a request must end."""

import anyio
import pytest

from stentor.protocols.common.errors import BadRequest
from stentor.server.common.errors import CutShort, DeadlineExceeded, ShutDown
from stentor.server.config.limits import OverloadConfig
from stentor.server.overload.queue_slots import AdmissionQueue
from stentor.server.overload.request_context import RequestContext, timeout_of

pytestmark = pytest.mark.anyio


def context(timeout: float = 0.0) -> RequestContext:
    return RequestContext(AdmissionQueue(OverloadConfig()).enter(), timeout)


@pytest.mark.parametrize(
    ("given", "most", "expected"),
    [(None, 0.0, 0.0), (None, 7.0, 7.0), (b"2.5", 0.0, 2.5), (b"2", 7.0, 2.0), (b"9", 7.0, 7.0)],
)
def test_a_client_may_only_shorten_what_the_operator_set(given: bytes | None, most: float, expected: float) -> None:
    headers = [(b"host", b"here")] if given is None else [(b"x-request-timeout", given)]
    assert timeout_of(headers, most) == expected


@pytest.mark.parametrize("given", [[b"0"], [b"-1"], [b"nan"], [b"inf"], [b"soon"], [b""], [b"1", b"2"], [b"\xff"]])
def test_a_header_that_is_no_time_is_refused_by_name(given: list[bytes]) -> None:
    with pytest.raises(BadRequest, match="`x-request-timeout` must be given once") as refused:
        timeout_of([(b"x-request-timeout", value) for value in given], 5.0)
    assert refused.value.param == "x-request-timeout"


async def test_what_is_inside_is_cancelled_at_the_deadline() -> None:
    one = context(0.02)
    with pytest.raises(DeadlineExceeded, match=r"within its 0\.02 seconds"), one.bounded():
        await anyio.sleep_forever()
    assert isinstance(one.ended_by, DeadlineExceeded)


async def test_the_deadline_is_that_of_the_whole_request() -> None:
    one = context(60.0)
    deadlines = []
    for _ in range(2):
        with one.bounded():
            assert one._scope is not None
            deadlines.append(one._scope.deadline)
            await anyio.sleep(0.01)
    assert deadlines[0] == deadlines[1]


async def test_a_request_is_cut_short_where_it_is_or_comes_to_next() -> None:
    for early in (True, False):
        one = context()
        async with anyio.create_task_group() as tasks:
            if early:
                one.cut_short(ShutDown())
            else:
                tasks.start_soon(_cut_later, one)
            with pytest.raises(ShutDown), one.bounded():
                await anyio.sleep_forever()
        one.cut_short(ShutDown())


async def test_one_that_ends_all_the_same_is_left_alone() -> None:
    one = context(60.0)
    with one.bounded():
        one.cut_short(ShutDown())
    assert one.ended_by is None


async def test_a_cancellation_from_outside_stays_one() -> None:
    one = context(60.0)
    with anyio.move_on_after(0.01) as outside:
        try:
            with one.bounded():
                await anyio.sleep_forever()
        except CutShort:
            pytest.fail("it was taken for a deadline")
    assert outside.cancelled_caught
    assert one.ended_by is None


async def _cut_later(one: RequestContext) -> None:
    await anyio.sleep(0.01)
    one.cut_short(ShutDown())
