"""A real engine with a model of random weights: what is served is what transformers writes of the same audio."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from transformers import VoxtralRealtimeForConditionalGeneration

from stentor.protocols.ipc.config import EngineConfig
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.streamed import StreamedTurn, StreamTranscriber
from stentor.server.app.auxiliary_models import open_streaming
from stentor.server.asr.stream_forms import is_streaming_model
from stentor.server.asr.stream_vocabulary import StreamVocabulary
from stentor.server.asr.streaming import StreamingTranscriptionModel, stream_whole
from stentor.tests.engine.forked import client_of, served
from stentor.tests.engine.local import model_config
from stentor.tests.engine.tiny_voxtral import features_of, speech, write_voxtral
from stentor.tests.server.asr.tekken import write_tekken
from stentor.tests.server.realtime.sounds import passes

pytestmark = pytest.mark.anyio
LEFT = 4


class Served:
    served_names = ("tiny",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_voxtral(tmp_path_factory.mktemp("voxtral"), seed=3)
    write_tekken(folder, left_pad=LEFT)
    return folder


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[StreamingTranscriptionModel]:
    client = client_of(EngineConfig(model_config(folder, max_num_seqs=3, max_num_batched_tokens=0)))
    async with served(client):
        yield open_streaming(Served(), client, folder)


def written_by_transformers(folder: Path, vocabulary: StreamVocabulary, pcm: bytes) -> tuple[str, list[int]]:
    theirs: Any = VoxtralRealtimeForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    prompt, padded = vocabulary.prompt, vocabulary.before + pcm + vocabulary.after(len(pcm))
    found = theirs.generate(
        input_ids=torch.tensor([prompt]),
        input_features=features_of(padded),
        num_delay_tokens=vocabulary.delay,
        max_new_tokens=len(padded) // vocabulary.step_bytes - len(prompt),
        do_sample=False,
        eos_token_id=vocabulary.eos,
        pad_token_id=0,
    )
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return b"".join(map(vocabulary.token_bytes, tokens)).decode("utf-8", "replace"), tokens


async def test_text_is_that_of_transformers_whole_and_piece_by_piece(folder: Path) -> None:
    assert is_streaming_model(folder)
    async with listening(folder) as model:
        vocabulary = model.form
        assert isinstance(vocabulary, StreamVocabulary)
        for seed, early in ((9, False), (1, True)):
            pcm = speech(60, seed)[: -2 * 333]
            expected, tokens = written_by_transformers(folder, vocabulary, pcm)
            pieces = [piece async for piece in stream_whole(model, pcm, logprobs=True)]
            found = [said.token for piece in pieces for said in piece.tokens]
            words = [token for token in tokens if vocabulary.token_bytes(token)]
            assert len(set(words)) > 8
            assert (tokens[-1] == vocabulary.eos) == early
            # after the last position one more token is drawn here, as transformers does of a stream
            assert found[: len(words)] == words
            assert len(found) <= len(words) + 1
            text = "".join(piece.text for piece in pieces)
            assert text.startswith(expected.strip())
            assert not early or text == expected.strip()
            if early:
                continue  # it would be heard on while the turn goes on

            turn = StreamedTurn(0, StreamTranscriber(model, passes()), TranscriptionSettings(partials=True))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(turn.run)
                for at in range(0, len(pcm), 3000):
                    turn.push(pcm[at : at + 3000])
                    await anyio.sleep(0.002)
                turn.finish()
                assert (await turn.transcript()).text == text
