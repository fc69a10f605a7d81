from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.core.cache import BlockPool, PrefixCache, chain_digest, root_digest
from stentor.engine.core.cache.needs import BlockNeeds
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
