"""Kyutai's speech-to-text models: a real engine with random weights writes what transformers does of the same audio."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from openai.types import audio as sdk
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteFallback, Fuse, Replace
from tokenizers.decoders import Sequence as Decoders
from tokenizers.models import Unigram
from transformers import KyutaiSpeechToTextFeatureExtractor

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.config import EngineConfig
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.streamed import StreamedTurn, StreamTranscriber
from stentor.server.app.auxiliary_models import open_streaming
from stentor.server.asr.kyutai import KyutaiStreams, kyutai_streams_of
from stentor.server.asr.stream_forms import is_streaming_model
from stentor.server.asr.streaming import Piece, StreamingTranscriptionModel, TextToken, stream_whole
from stentor.server.asr.timed_pieces import segments_of
from stentor.server.config.model_registry import ModelRegistry, ServedModel
from stentor.tests.engine.forked import client_of, served
from stentor.tests.engine.local import model_config
from stentor.tests.engine.tiny_kyutai import VOCAB, generated_by_kyutai, kyutai_of, write_kyutai
from stentor.tests.engine.tiny_voxtral import speech
from stentor.tests.fakes import fake_state
from stentor.tests.server.asr.test_http import EXTENSIONS, WavReader, post
from stentor.tests.server.realtime.sounds import passes
from stentor.tests.wire.validate import check_object

pytestmark = pytest.mark.anyio
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>")


class Served:
    served_names = ("tiny",)


def write_files(folder: Path, *, delay: float = 0.4, silence: float = 0.3) -> None:
    """A tokenizer whose words are letters, and a processor's file."""
    words = [chr(ord("a") + number % 26) * (1 + number // 26) for number in range(VOCAB - len(SPECIAL) - 1)]
    spelled = [f"▁{word}" if number % 2 else word for number, word in enumerate(words)]
    backend = Backend(Unigram([(token, 0.0) for token in (*SPECIAL, *spelled)], 0))
    backend.decoder = Decoders([Replace("▁", " "), ByteFallback(), Fuse()])
    backend.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL[1:]])
    backend.save(str(folder / "tokenizer.json"))
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    extractor = KyutaiSpeechToTextFeatureExtractor(audio_delay_seconds=delay, audio_silence_prefix_seconds=silence)
    extractor.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_kyutai(tmp_path_factory.mktemp("kyutai"), seed=3)
    write_files(folder)
    return folder


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[StreamingTranscriptionModel]:
    client = client_of(EngineConfig(model_config(folder, max_num_seqs=3, max_num_batched_tokens=0)))
    async with served(client):
        yield open_streaming(Served(), client, folder)


def padded(form: KyutaiStreams, pcm: bytes) -> bytes:
    before = form.request(1000, None, logprobs=False).streamed
    assert before is not None
    return before + pcm + form.after(len(pcm))


def written_by_transformers(folder: Path, form: KyutaiStreams, pcm: bytes) -> tuple[str, list[int]]:
    tokens = generated_by_kyutai(kyutai_of(folder), padded(form, pcm))
    tokenizer = Backend.from_file(str(folder / "tokenizer.json"))
    kept = [token for token in tokens if token >= len(SPECIAL) and tokenizer.id_to_token(token)]
    return tokenizer.decode(kept).strip(), kept


async def check_times(model: StreamingTranscriptionModel, pcm: bytes, expected: str) -> None:
    """What the endpoint says of words, beside the positions at which transformers writes them."""
    form = model.form
    assert isinstance(form, KyutaiStreams)
    names = ServedModel("chat", ("fake/model",)), ServedModel("transcription", model.served_names)
    state = fake_state(registry=ModelRegistry([*names]), transcription=model, decoder=WavReader())
    fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")]
    answer = await post(state, [*fields, ("timestamp_granularities[]", "segment")], pcm)
    assert answer.status_code == 200, answer.text
    found = check_object(sdk.TranscriptionVerbose, answer.content, EXTENSIONS)
    assert found.text == expected
    assert " ".join(word.word for word in found.words or ()) == " ".join(expected.split())
    assert "".join(segment.text for segment in found.segments or ()).strip() == expected
    seconds = len(pcm) / 32_000
    starts = [word.start for word in found.words or ()]
    assert starts == sorted(starts)
    assert all(0 <= word.start <= word.end <= seconds + 0.01 for word in found.words or ())
    pieces = [piece async for piece in stream_whole(model, pcm)]
    said = [token for piece in pieces for token in piece.tokens]
    begins = [token.time for place, token in enumerate(said) if not place or token.bytes.startswith(b" ")]
    assert starts == [round(min(time, seconds), 2) for time in begins]
    subtitles = await post(state, [("response_format", "srt")], pcm)
    assert subtitles.text.startswith("1\n00:00:0")
    refused = await post(state, [("response_format", "diarized_json")], pcm)
    assert refused.status_code == 400


def test_words_last_until_the_next_and_sentences_end_at_marks_and_pauses() -> None:
    spoken = [(" So", 0.4), (" it", 0.8), ("s", 0.88), (".", 0.96), (" Then", 1.0), (" on", 4.0)]
    tokens = [TextToken(place, text.encode(), -0.5, time) for place, (text, time) in enumerate(spoken)]
    found = segments_of([Piece("", tokens[:3]), Piece("", tokens[3:])], 0.08, 4.05)
    assert [segment.text for segment in found] == [" So its.", " Then", " on"]
    words = [(word.word, word.start, round(word.end, 2)) for segment in found for word in segment.words or ()]
    assert words == [(" So", 0.4, 0.48), (" its.", 0.8, 1.0), (" Then", 1.0, 1.08), (" on", 4.0, 4.05)]
    assert [segment.tokens for segment in found] == [[0, 1, 2, 3], [4], [5]]
    assert found[0].avg_logprob == -0.5
    assert segments_of([], 0.08, 1.0) == []


async def test_text_is_that_of_transformers_whole_and_piece_by_piece(folder: Path) -> None:
    assert is_streaming_model(folder)
    pcm = speech(50, 9)[: -2 * 333]
    async with listening(folder) as model:
        assert isinstance(model.form, KyutaiStreams)
        expected, tokens = written_by_transformers(folder, model.form, pcm)
        assert len(set(tokens)) > 5
        pieces = [piece async for piece in stream_whole(model, pcm, logprobs=True)]
        assert "".join(piece.text for piece in pieces) == expected
        assert [said.token for piece in pieces for said in piece.tokens] == tokens
        await check_times(model, pcm, expected)

        turn = StreamedTurn(0, StreamTranscriber(model, passes()), TranscriptionSettings(partials=True))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turn.run)
            for at in range(0, len(pcm), 3000):
                turn.push(pcm[at : at + 3000])
                await anyio.sleep(0.002)
            turn.finish()
            assert (await turn.transcript()).text == expected


def test_silence_is_that_of_transformers_filled_up_to_whole_positions(folder: Path) -> None:
    form = kyutai_streams_of(folder)
    theirs = KyutaiSpeechToTextFeatureExtractor.from_pretrained(folder)
    for samples in (1, 1280, 16_000, 50_000):
        found = theirs(np.ones(samples * 3 // 2, np.float32), sampling_rate=24_000, return_tensors="np").input_values
        heard = found[0, 0].nonzero()[0]
        ours = np.frombuffer(padded(form, np.ones(samples, "<i2").tobytes()), "<i2")
        begin, lasts = int(ours.argmax()), len(ours)
        assert begin == heard[0] * 2 // 3 == form.silence
        assert lasts % form.step == 0
        assert 0 <= lasts - (found.shape[-1] * 2 + 2) // 3 < form.step
        assert form.late == 1 + -(-(form.silence + form.delay) // form.step) == 10


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (None, "There is no preprocessor_config.json and no processor_config.json"),
        ({"audio_delay_seconds": None}, "audio_delay_seconds is missing"),
        ({"audio_delay_seconds": -1}, "a delay of -1 s, expected"),
        ({"sampling_rate": 16_000}, "says 16000 Hz"),
    ],
)
def test_a_processors_file_that_says_no_delay_is_refused(
    folder: Path, tmp_path: Path, changes: dict[str, Any] | None, expected: str
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    if changes is not None:
        found = json.loads((folder / "preprocessor_config.json").read_text())
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({**found, **changes}))
    with pytest.raises(CheckpointError, match=expected):
        kyutai_streams_of(tmp_path)
