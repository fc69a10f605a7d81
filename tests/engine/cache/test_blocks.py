import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stentor.engine.core.cache import BlockPool, OutOfBlocks
from stentor.tests.examples import examples

NUM_BLOCKS = 5


class PoolMachine(RuleBasedStateMachine):
    """The pool beside a model that says the same in dicts and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.refs = dict.fromkeys(range(NUM_BLOCKS), 0)
        self.labels: dict[int, bytes] = {}
        self.order = list(range(NUM_BLOCKS))
        self.followers: list[tuple[int, bytes, tuple[int, ...]]] = []
        """Block, parent and contents, the newest last."""

    def unlabel(self, block: int) -> None:
        self.labels.pop(block, None)
        self.followers = [each for each in self.followers if each[0] != block]

    @rule()
    def allocate(self) -> None:
        if not self.order:
            with pytest.raises(OutOfBlocks, match="in use"):
                self.pool.allocate()
            return
        expected = self.order.pop(0)
        assert self.pool.allocate() == expected
        self.refs[expected] = 1
        self.unlabel(expected)

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def allocate_many(self, count: int) -> None:
        if count > len(self.order):
            with pytest.raises(OutOfBlocks):
                self.pool.allocate_many(count)
            return
        expected, self.order = self.order[:count], self.order[count:]
        assert self.pool.allocate_many(count) == expected
        for block in expected:
            self.refs[block] = 1
            self.unlabel(block)

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def ref(self, block: int) -> None:
        self.pool.ref(block)
        if block in self.order:
            self.order.remove(block)
        self.refs[block] += 1

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def free(self, block: int) -> None:
        if not self.refs[block]:
            with pytest.raises(ValueError, match="nobody holds it"):
                self.pool.free(block)
            return
        self.pool.free(block)
        self.refs[block] -= 1
        if not self.refs[block]:
            self.order.insert(len(self.order) if block in self.labels else 0, block)

    @rule(
        block=st.integers(0, NUM_BLOCKS - 1),
        digest=st.sampled_from([b"a", b"b", b"c"]),
        parent=st.sampled_from([b"p", b"q"]),
        contents=st.sampled_from([(), (1,), (1, 2)]),
    )
    def label(self, block: int, digest: bytes, parent: bytes, contents: tuple[int, ...]) -> None:
        if not self.refs[block]:
            with pytest.raises(ValueError, match="nobody holds it"):
                self.pool.set_block_hash(block, digest)
        elif digest in self.labels.values():
            assert self.pool.set_block_hash(block, digest) == (self.labels.get(block) == digest)
        elif block in self.labels:
            with pytest.raises(ValueError, match="already has a hash"):
                self.pool.set_block_hash(block, digest)
        else:
            assert self.pool.set_block_hash(block, digest, parent, contents)
            self.labels[block] = digest
            self.followers += [(block, parent, contents)] if contents else []

    @rule(block=st.integers(0, NUM_BLOCKS - 1))
    def drop_label(self, block: int) -> None:
        if not self.refs[block]:
            with pytest.raises(ValueError, match="nobody holds it"):
                self.pool.drop_block_hash(block)
            return
        self.pool.drop_block_hash(block)
        self.unlabel(block)

    @rule(parent=st.sampled_from([b"p", b"q", b"r"]))
    def following(self, parent: bytes) -> None:
        expected = [(self.labels[block], held) for block, before, held in reversed(self.followers) if before == parent]
        assert list(self.pool.following(parent)) == expected

    @rule()
    def forget(self) -> None:
        self.pool.forget_hashes()
        self.labels, self.followers = {}, []

    @rule(digest=st.sampled_from([b"a", b"b", b"c"]))
    def find(self, digest: bytes) -> None:
        expected = [block for block, label in self.labels.items() if label == digest]
        assert self.pool.find(digest) == (expected[0] if expected else None)

    @precondition(lambda self: not self.order)
    @rule()
    def reset(self) -> None:
        self.pool.reset()
        self.__dict__.update(
            refs=dict.fromkeys(range(NUM_BLOCKS), 0), labels={}, order=list(range(NUM_BLOCKS)), followers=[]
        )

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        assert self.pool.free_count == len(self.order)
        assert {block: self.pool.refs(block) for block in range(NUM_BLOCKS)} == self.refs


TestPoolAgainstModel = PoolMachine.TestCase
TestPoolAgainstModel.settings = settings(max_examples=examples(30, 300), stateful_step_count=40, deadline=None)


def test_a_labelled_block_is_evicted_only_after_unlabelled_ones_and_oldest_first() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate_many(4)
    pool.set_block_hash(blocks[0], b"old")
    pool.set_block_hash(blocks[2], b"new")
    for block in blocks:
        pool.free(block)
    assert {pool.allocate(), pool.allocate()} == {blocks[1], blocks[3]}
    assert pool.find(b"old") == blocks[0]
    assert pool.allocate() == blocks[0]
    assert pool.find(b"old") is None
    assert pool.find(b"new") == blocks[2]


def test_using_a_cached_block_again_makes_it_the_most_recent() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate_many(2)
    pool.set_block_hash(first, b"first")
    pool.set_block_hash(second, b"second")
    pool.free(first)
    pool.free(second)
    pool.ref(first)
    pool.free(first)
    assert pool.allocate() == second


def test_a_table_is_freed_from_its_end_so_that_its_prefix_stays_longest() -> None:
    pool = BlockPool(3)
    table = pool.allocate_many(3)
    for block in table:
        pool.set_block_hash(block, b"%d" % block)
    pool.free_table(table)
    assert pool.allocate_many(3) == table[::-1]


def test_of_many_that_follow_one_prefix_the_newest_are_compared() -> None:
    pool = BlockPool(20)
    for block in pool.allocate_many(20):
        pool.set_block_hash(block, b"%d" % block, b"parent", [block])
    assert [contents for _, contents in pool.following(b"parent")] == [[block] for block in range(19, 11, -1)]
    pool.check_integrity()


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)


def test_the_integrity_check_notices_a_reference_that_was_lost() -> None:
    pool = BlockPool(3)
    pool.allocate()
    pool._refs[0] = 0
    with pytest.raises(AssertionError, match="free list"):
        pool.check_integrity()


def test_the_integrity_check_notices_a_label_without_index() -> None:
    pool = BlockPool(3)
    pool.set_block_hash(pool.allocate(), b"x")
    pool._by_hash.clear()
    with pytest.raises(AssertionError, match="hashes"):
        pool.check_integrity()
