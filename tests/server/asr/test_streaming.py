"""How the text and the audio of several stretches are put together and cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.server.asr.streaming import JoinedText, stream_whole
from stentor.server.audio import quiet
from stentor.tests.server.asr.streams import STREAMS, StreamingEngine, streaming_model
from stentor.tests.server.realtime.sounds import silence, words

PIECES = st.lists(st.text(st.sampled_from("a é\n日"), max_size=4), max_size=6)


@given(st.lists(PIECES, max_size=4))
def test_the_text_is_what_was_told_and_that_of_each_stretch_after_a_space(stretches: list[list[str]]) -> None:
    written, reported = JoinedText(), ""
    for pieces in stretches:
        for piece in pieces:
            reported += written.add(piece)
            assert reported == written.text == reported.strip()
        written.begin()
    assert reported == " ".join(text for text in ("".join(pieces).strip() for pieces in stretches) if text)


@pytest.mark.anyio
async def test_a_long_file_is_cut_where_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "_CUT_SAMPLES", 12 * STREAMS.step)
    engine = StreamingEngine(max_model_len=1 + STREAMS.padding + 37)
    pcm = words(1, 2, 3, 4, 5) + silence(240) + words(6, 7, 8)
    pieces = [piece async for piece in stream_whole(streaming_model(engine), pcm)]
    assert "".join(piece.text for piece in pieces) == " ".join(f"ẃ{number}" for number in range(1, 9))
    first = len(engine.streams[0].audio) - len(STREAMS.after(0))
    assert len(words(1, 2, 3, 4, 5)) < first < len(words(1, 2, 3, 4, 5)) + len(silence(240)) + STREAMS.step_bytes
    assert len(engine.streams) == 2
