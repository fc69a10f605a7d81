"""Stretches of a sentence's codes: all frames once, in order, each with its context."""

from hypothesis import given
from hypothesis import strategies as st

from stentor.engine.tts.codecs import Codec
from stentor.server.tts.code_chunks import Chunk, CodeChunks


def codec(context: int | None, frame_codes: int = 3) -> Codec:
    """Eight frames a second."""
    return Codec("snac", 8000, 1000, frame_codes, 100, context)


def all_of(chunks: CodeChunks) -> list[Chunk]:
    return [*iter(chunks.take, None)]


@given(
    st.lists(st.integers(1, 40), max_size=30),
    st.sampled_from([None, 0, 1, 3, 50]),
    st.integers(1, 7),
    st.integers(0, 6),
)
def test_every_frame_is_kept_once_with_all_that_it_depends_on(
    arrivals: list[int], context: int | None, frame_codes: int, extra: int
) -> None:
    given_codec = codec(context, frame_codes)
    chunks, taken, codes = CodeChunks(given_codec), list[Chunk](), list[int]()
    for count in arrivals:
        new = [*range(len(codes), len(codes) + count)]
        codes += new
        chunks.add(new)
        taken += all_of(chunks)
    rest = [-1] * min(extra, frame_codes - 1 - len(codes) % frame_codes)
    chunks.add(rest)
    chunks.end()
    taken += all_of(chunks)
    frames = len(codes) // frame_codes
    assert sum(chunk.keep for chunk in taken) == frames
    assert [chunk.last for chunk in taken] == [False] * (len(taken) - 1) + [True] * bool(taken)
    begin = 0
    for chunk in taken:
        assert chunk.keep > 0
        assert chunk.first + chunk.skip == begin
        reach = frames if context is None else context
        assert chunk.first == max(0, begin - reach)
        end = min(frames, begin + chunk.keep + reach)
        assert chunk.codes == codes[chunk.first * frame_codes : end * frame_codes]
        begin += chunk.keep


def test_the_first_stretch_is_short_and_later_ones_are_twice_as_long_up_to_two_seconds() -> None:
    chunks = CodeChunks(codec(2, 1))
    chunks.add([0] * 3)
    assert chunks.take() is None, "a quarter of a second is two frames, and two more are its context"
    chunks.add([0])
    assert chunks.take() == Chunk([0] * 4, 0, 0, 2, last=False)
    chunks.add([0] * 200)
    assert [chunk.keep for chunk in all_of(chunks)[:5]] == [4, 8, 16, 16, 16]


def test_a_codec_that_depends_on_the_whole_sentence_gets_it_at_its_end() -> None:
    chunks = CodeChunks(codec(None))
    chunks.add([*range(90)])
    assert chunks.take() is None
    chunks.end()
    assert all_of(chunks) == [Chunk([*range(90)], 0, 0, 30, last=True)]


def test_a_sentence_without_a_frame_has_no_stretch() -> None:
    for context in (None, 2):
        chunks = CodeChunks(codec(context))
        chunks.add([1, 2])
        chunks.end()
        assert all_of(chunks) == []
