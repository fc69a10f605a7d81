from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.core.cache import BlockPool, PrefixCache, chain_digest, root_digest
from stentor.engine.core.cache.followers import common_length
from stentor.engine.core.cache.needs import BlockNeeds
from stentor.engine.core.cache.prefix import tail_digest
from stentor.tests.examples import examples

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=4, max_size=4)


@settings(max_examples=examples(20, 250), deadline=None)
@given(TOKENS, TOKENS, st.text(), st.text())
def test_digests_are_equal_exactly_where_salt_and_tokens_are(a: list[int], b: list[int], s: str, t: str) -> None:
    assert (root_digest(s) == root_digest(t)) == (s == t)
    assert (chain_digest(root_digest(s), a) == chain_digest(root_digest(t), b)) == ((s, a) == (t, b))


def test_the_same_tokens_after_another_prefix_have_another_digest() -> None:
    root = root_digest("")
    assert chain_digest(chain_digest(root, [1, 2]), [3, 4]) != chain_digest(chain_digest(root, [2, 1]), [3, 4])


def test_a_salt_that_is_not_valid_unicode_is_hashed_too() -> None:
    assert root_digest("\ud800") != root_digest("\ud801")


def test_a_match_ends_at_the_first_unknown_block() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool, BlockNeeds(2), enabled=True)
    blocks = pool.allocate_many(3)
    digests = [b"a", b"b", b"c", b"d"]
    pool.set_block_hash(blocks[0], b"a")
    pool.set_block_hash(blocks[1], b"b")
    pool.set_block_hash(blocks[2], b"d")
    assert cache.match(digests) == ([blocks[:2]], 2)
    assert cache.match(digests[1:]) == ([[blocks[1]]], 1)
    assert cache.match([b"x"]) == ([[]], 0)


def test_a_part_of_a_block_has_another_name_than_a_whole_one() -> None:
    root = root_digest("")
    assert tail_digest(root, [1, 2]) != chain_digest(root, [1, 2])
    assert tail_digest(root, [1, 2]) != tail_digest(root, [1])


@settings(max_examples=examples(20, 250), deadline=None)
@given(*[st.lists(st.one_of(st.integers(0, 2), st.binary(min_size=1, max_size=1)), max_size=5)] * 2)
def test_what_is_common_ends_before_the_first_position_that_differs(a: list[int | bytes], b: list[int | bytes]) -> None:
    length = common_length(a, b)
    assert a[:length] == b[:length]
    assert length in (len(a), len(b)) or a[length] != b[length]


def test_the_block_that_begins_with_most_of_a_prompt_is_found_where_all_groups_know_it() -> None:
    pool = BlockPool(20)
    cache = PrefixCache(pool, BlockNeeds(4, (0, 8)), enabled=True)
    tables = [pool.allocate_many(4), pool.allocate_many(4)]
    for block, contents in enumerate(([1, 2, 3], [1, 2, 4, 5], [1, 6], [1, 2, 3, 7])):
        groups = (0,) if block == 3 else (0, 1)
        for group in groups:
            cache.name(group, block, b"%d" % block, tables[group], b"parent", contents)

    def found(*wanted: int) -> tuple[list[int], int]:
        return cache.match_tail(b"parent", wanted)

    assert found(1, 2, 3, 7) == ([tables[0][0], tables[1][0]], 3), "the fourth is known to one group only"
    assert found(1, 2, 4) == ([tables[0][1], tables[1][1]], 3)
    assert found(1)[1] == 1
    assert found(2) == ([], 0)
    assert cache.match_tail(b"other", [1]) == ([], 0)


def test_a_block_that_has_filled_up_goes_by_the_name_of_all_of_it() -> None:
    pool = BlockPool(4)
    cache = PrefixCache(pool, BlockNeeds(4), enabled=True)
    table = pool.allocate_many(1)
    cache.name(0, 0, b"part", table, b"parent", [1, 2])
    cache.name(0, 0, b"whole", table, b"parent", [1, 2, 3, 4])
    assert (pool.find(b"part"), pool.find(b"whole")) == (None, table[0])
    assert cache.match_tail(b"parent", [1, 2, 3]) == (table, 3)
    pool.check_integrity()
