"""A vocabulary travels in pieces and arrives as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.engine.core.grammar import vocabulary
from stentor.engine.core.grammar.vocabulary import TokenBytes, VocabularyError, VocabularyReader, pieces_of
from stentor.protocols.ipc.actors import Vocabulary
from stentor.protocols.ipc.codec import decode_engine, encoder

TOKENS = st.lists(st.binary(max_size=12), min_size=1, max_size=60)


@given(TOKENS, st.sets(st.integers(0, 59)), st.sets(st.integers(0, 59)), st.integers(1, 80))
def test_pieces_make_what_was_cut(tokens: list[bytes], special: set[int], eos: set[int], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "PIECE_BYTES", size)
        frames = [encoder.encode(piece) for piece in pieces_of(tokens, frozenset(special), frozenset(eos))]
    assert all(len(frame) < size + 150 for frame in frames)
    reader = VocabularyReader()
    whole: list[TokenBytes] = []
    for frame in frames:
        piece = decode_engine.decode(frame)
        assert isinstance(piece, Vocabulary)
        assert not whole
        if (found := reader.take(piece)) is not None:
            whole.append(found)
    ids = range(len(tokens))
    assert whole == [TokenBytes(tokens, [i for i in ids if i in special], [i for i in ids if i in eos])]


def test_pieces_fit_a_ring_many_times() -> None:
    pieces = list(pieces_of([b"token %d" % id for id in range(150_000)], frozenset(), frozenset()))
    assert len(pieces) > 10
    assert max(len(encoder.encode(piece)) for piece in pieces) < 160 << 10


def test_a_piece_out_of_order_is_refused() -> None:
    reader = VocabularyReader()
    assert reader.take(Vocabulary(0, 4, [b"a"], [], [])) is None
    with pytest.raises(VocabularyError, match="begins at token 2; expected was 1"):
        reader.take(Vocabulary(2, 4, [b"a"], [], []))


def test_a_first_piece_begins_anew() -> None:
    reader = VocabularyReader()
    reader.take(Vocabulary(0, 4, [b"a"], [0], [0]))
    assert reader.take(Vocabulary(0, 1, [b"b"], [], [])) == TokenBytes([b"b"], [], [])
