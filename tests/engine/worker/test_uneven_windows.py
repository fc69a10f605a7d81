"""A worker with windows that have as many positions as audio, beside transformers and beside itself alone."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSpeechSeq2Seq

from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.media import Audio
from stentor.tests.engine.tiny_whisper import window
from stentor.tests.parity.test_encoder_decoders import inputs_of
from stentor.tests.parity.transcribers import START, tiny, tiny_seamless, tiny_streaming, write_moonshine

GREEDY = SamplingParams(max_tokens=16, temperature=0.0)
SECONDS = (2.0, 0.3, 5.1, 1.0, 0.01)


@pytest.fixture(scope="module", params=[tiny, tiny_streaming, tiny_seamless])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_moonshine(tmp_path_factory.mktemp("moonshine"), request.param)


@pytest.fixture(scope="module")
def engine(folder: Path) -> LocalEngine:
    return LocalEngine(model_config(folder, max_num_seqs=3, max_num_batched_tokens=0))


def windows() -> list[Audio]:
    return [window(seed, seconds, rules=None) for seed, seconds in enumerate(SECONDS)]


def transcripts(engine: LocalEngine, deaths: list[int] | None = None) -> list[list[int]]:
    """Of all windows at once; the worker dies after these steps."""
    engine.restart(engine.ready.num_blocks)
    before, left = engine.steps, deaths or []
    rids = [engine.submit([START], GREEDY, audio=audio) for audio in windows()]
    engine.run(check=True, dies=lambda: engine.steps - before in left and bool(left.pop(0)))
    return [engine.outcomes[rid, 0].tokens for rid in rids]


def greedy_by_transformers(folder: Path, audio: Audio) -> list[int]:
    theirs = AutoModelForSpeechSeq2Seq.from_pretrained(folder, attn_implementation="eager").eval()
    inputs, tokens = inputs_of(theirs, audio.pcm), [START]
    with torch.inference_mode():
        for _ in range(GREEDY.max_tokens):
            logits = theirs(**inputs, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
            tokens.append(int(logits.argmax()))
    return tokens[1:]


def test_tokens_of_windows_of_any_length_at_once_are_those_of_transformers(folder: Path, engine: LocalEngine) -> None:
    assert transcripts(engine) == [greedy_by_transformers(folder, audio) for audio in windows()]


def test_no_death_of_a_worker_changes_a_transcript(engine: LocalEngine) -> None:
    assert transcripts(engine, [2, 9, 20]) == transcripts(engine)


def test_an_encoder_slot_holds_half_a_minute_of_positions(engine: LocalEngine) -> None:
    (cross,) = (group for group in engine.ready.groups if group.kind == "cross")
    assert (cross.window, cross.capacity) in ((1248, 3 * 1248), (1500, 3 * 1500), (188, 3 * 188))
