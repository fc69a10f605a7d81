"""A machine that has no memory or no descriptors left: a channel is made whole or not at all, and says why."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stentor.engine.channel import ChannelError, ChannelPair
from stentor.engine.channel.atomics import machine_atomics
from stentor.engine.channel.endpoint import DEFAULT_CAPACITY
from stentor.engine.channel.region import Region, region_bytes
from stentor.tests.support.descriptors import open_descriptors


@contextmanager
def limited(which: int, soft: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def test_all_memory_of_a_channel_is_taken_when_it_is_made() -> None:
    region = Region.create(DEFAULT_CAPACITY)
    try:
        assert os.fstat(region.memfd).st_blocks * 512 >= region_bytes(DEFAULT_CAPACITY)
    finally:
        region.unmap()
        os.close(region.memfd)


def test_where_memory_may_not_grow_so_far_one_line_says_so_and_nothing_is_left() -> None:
    before = open_descriptors()
    with limited(resource.RLIMIT_FSIZE, DEFAULT_CAPACITY), pytest.raises(ChannelError) as refused:
        ChannelPair.create()
    assert str(refused.value) == (
        f"cannot get the {region_bytes(DEFAULT_CAPACITY)} bytes of shared memory that a channel needs: "
        "File too large; free memory, or raise the limit of this process or container"
    )
    assert not open_descriptors() - before


def test_where_there_is_no_room_for_the_mapping_one_line_says_so_and_nothing_is_left() -> None:
    before = open_descriptors()
    # many of the largest, so that what the allocator keeps in reserve does not suffice
    with (
        limited(resource.RLIMIT_AS, _address_space() + (8 << 20)),
        pytest.raises(ChannelError, match=r"bytes of shared memory that a channel needs: Cannot allocate memory; "),
    ):
        Region.create(1 << 24)
    assert not open_descriptors() - before


def test_without_descriptors_for_its_bells_nothing_of_a_channel_is_left() -> None:
    before = open_descriptors()
    machine_atomics()  # what it needs is opened once
    taken: list[int] = []
    try:
        with limited(resource.RLIMIT_NOFILE, max(number for number, _ in before) + 8):
            with suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(3):  # the memory and two of four bells
                os.close(taken.pop())
            with pytest.raises(ChannelError, match="doorbells: Too many open files"):
                ChannelPair.create()
    finally:
        for fd in taken:
            os.close(fd)
    assert not open_descriptors() - before
