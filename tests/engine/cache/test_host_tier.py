"""Blocks that go to host memory when the pool gives them away, and come back."""

import random

import pytest

from stentor.engine.core.cache import BlockPool

DIGESTS = [bytes([number]) for number in range(12)]


def pool_of(blocks: int, host: int) -> BlockPool:
    pool = BlockPool(blocks)
    pool.host.reset(host)
    return pool


def fill(pool: BlockPool, digest: bytes, parent: bytes = b"", contents: tuple[int, ...] = ()) -> int:
    """A free block with this hash."""
    block = pool.allocate()
    pool.set_block_hash(block, digest, parent, contents)
    pool.free(block)
    return block


def test_a_block_with_a_hash_that_is_given_away_is_found_in_host_memory_and_fetched_back() -> None:
    pool = pool_of(1, 2)
    block = fill(pool, b"a")
    assert pool.allocate() == block
    assert pool.take_copies() == [(block, -1)]
    pool.free(block)
    place = pool.find(b"a")
    assert place == -1
    pool.ref(place)
    assert pool.fetch(place) == block
    assert pool.take_copies() == [(-1, block)]
    assert pool.find(b"a") == block, "the device's copy is found first"
    assert (pool.stored, pool.fetched) == (1, 1)
    pool.check_integrity()


def test_what_lies_there_already_is_not_copied_again() -> None:
    pool = pool_of(1, 2)
    fill(pool, b"a")
    for _ in range(3):
        fill(pool, b"b")
        pool.ref(-1)
        pool.free(pool.fetch(-1))
    assert pool.find(b"b") == -2
    assert pool.stored == 2
    assert [pair for pair in pool.take_copies() if pair[1] < 0] == [(0, -1), (0, -2)]


def test_the_least_recently_used_place_is_overwritten_and_one_that_is_held_is_not() -> None:
    pool = pool_of(1, 2)
    for digest in (b"a", b"b", b"c"):
        fill(pool, digest)
    pool.ref(-1)  # what a had
    fill(pool, b"d")
    assert (pool.find(b"a"), pool.find(b"b"), pool.find(b"c")) == (-1, None, -2)
    pool.ref(-2)
    fill(pool, b"e")
    assert pool.find(b"d") is None, "all places are held"
    pool.free(-1)
    pool.free(-2)
    fill(pool, b"f")
    assert (pool.find(b"a"), pool.find(b"e")) == (None, -1)
    pool.check_integrity()


def test_a_block_without_a_hash_goes_nowhere_and_without_a_tier_none_does() -> None:
    pool = pool_of(1, 2)
    pool.free(pool.allocate())
    pool.allocate()
    assert pool.take_copies() == []
    pool = pool_of(1, 0)
    fill(pool, b"a")
    pool.allocate()
    assert pool.take_copies() == []
    assert pool.find(b"a") is None


@pytest.mark.parametrize("forget", ["forget_hashes", "reset"])
def test_what_is_forgotten_on_the_device_is_forgotten_in_host_memory(forget: str) -> None:
    pool = pool_of(1, 2)
    fill(pool, b"a", b"parent", (1,))
    pool.free(pool.allocate())
    getattr(pool, forget)()
    assert pool.find(b"a") is None
    assert list(pool.following(b"parent")) == []
    pool.check_integrity()


@pytest.mark.parametrize("host", [1, 2, 5])
def test_whatever_is_found_holds_what_its_hash_says_at_the_moment_of_its_copy(host: int) -> None:
    """Copies are made in order over a memory of digests, as a worker makes them."""
    for seed in range(50):
        rng = random.Random(seed)
        pool = pool_of(4, host)
        memory: dict[int, bytes] = {}
        held: list[int] = []
        for _ in range(200):
            digest = rng.choice(DIGESTS)
            parent, contents = bytes([digest[0] // 4]), (digest[0],)
            found = pool.find(digest)
            while not pool.free_count:
                pool.free(held.pop(rng.randrange(len(held))))
            if found is None:
                held.append(pool.allocate())
            else:
                pool.ref(found)
                held.append(pool.fetch(found) if found < 0 else found)
            for source, target in pool.take_copies():
                memory[target] = memory[source]
            if found is None:
                memory[held[-1]] = digest
                pool.set_block_hash(held[-1], digest, parent, contents)
            assert memory[held[-1]] == digest
            assert all(contents == (named[0],) for named, contents in pool.following(parent))
            while held and rng.random() < 0.5:
                pool.free(held.pop(rng.randrange(len(held))))
            pool.check_integrity()
        assert pool.fetched > 0
