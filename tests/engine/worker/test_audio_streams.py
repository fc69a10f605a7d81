"""Workers of streaming transcription models, beside transformers and beside themselves in one piece."""

import random
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from transformers import VoxtralRealtimeForConditionalGeneration

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.models.speech.stream_encoder import StreamState
from stentor.engine.models.speech.streamed import StreamedTranscriber
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import set_up_on
from stentor.protocols.ipc.inputs import StreamShape
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.media import Heard
from stentor.tests.engine.tiny_kyutai import VOCAB, WINDOW, generated_by_kyutai, kyutai_of, write_kyutai
from stentor.tests.engine.tiny_voxtral import BOS, PAD, STEP, features_of, speech, write_voxtral
from stentor.tests.engine.worker.fake_device import FakeDevice
from stentor.tests.kernels.helpers import assert_close

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = [BOS, PAD, PAD, PAD, PAD]
GREEDY = SamplingParams(max_tokens=100, temperature=0.0)
FIRST = 1320
"""Samples that the first position needs."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_voxtral(tmp_path_factory.mktemp("voxtral"))


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return VoxtralRealtimeForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def model(folder: Path) -> StreamedTranscriber:
    checkpoint = open_checkpoint(folder)
    place = LayerContext(torch.device("cpu"), torch.float32, invariant=False)
    model = StreamedTranscriber(checkpoint.streamed, place, 128)
    with torch.inference_mode():
        model.load(iterate_weights(checkpoint, torch.float32))
    return model


@pytest.fixture(scope="module")
def engine(folder: Path) -> LocalEngine:
    return LocalEngine(model_config(folder, max_num_seqs=5, max_num_batched_tokens=0))


@pytest.fixture(scope="module")
def kyutai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kyutai(tmp_path_factory.mktemp("kyutai"))


class Streaming(NamedTuple):
    engine: LocalEngine
    prompt: list[int]


@pytest.fixture(scope="module", params=["voxtral", "kyutai"])
def streaming(request: pytest.FixtureRequest) -> Streaming:
    if request.param == "voxtral":
        return Streaming(request.getfixturevalue("engine"), PROMPT)
    folder = request.getfixturevalue("kyutai")
    return Streaming(LocalEngine(model_config(folder, max_num_seqs=5, max_num_batched_tokens=0)), [VOCAB])


def fresh(engine: LocalEngine, blocks: int = 0) -> LocalEngine:
    engine.restart(blocks or engine.ready.num_blocks)
    return engine


def in_pieces(model: StreamedTranscriber, pcm: bytes, seed: int) -> torch.Tensor:
    """Heard in steps of any size, each with no more samples than it needs, or some more."""
    rng = random.Random(seed)
    encoder, stream, at = model.encoder, model.encoder.begin(), 0
    positions, found = len(pcm) // (2 * STEP), []
    with torch.inference_mode():
        while stream.position < positions:
            count = min(rng.randint(1, 7), positions - stream.position)
            need = 2 * ((stream.position + count - 1) * STEP + FIRST + rng.choice([0, 0, 1, 999]))
            end = max(at, min(need, len(pcm)))
            encoder.feed(stream, pcm[at:end], ended=end == len(pcm))
            at = end
            found.append(encoder.listen(stream, count))
            check_bounded(stream)
    return torch.cat(found)


def check_bounded(stream: StreamState) -> None:
    assert len(stream.samples) < FIRST + 1400
    assert all(len(keys) <= 12 for keys in (*stream.keys, *stream.values))


@pytest.mark.parametrize("seed", range(2))
def test_what_is_heard_in_pieces_is_what_transformers_hears_at_once(
    model: StreamedTranscriber, theirs: Any, seed: int
) -> None:
    pcm = speech(30, seed)
    with torch.inference_mode():
        expected = theirs.model.get_audio_features(features_of(pcm)).pooler_output[0]
    assert_close(in_pieces(model, pcm, seed), expected, 1e-5)


def generated_by_transformers(theirs: Any, pcm: bytes) -> list[int]:
    found = theirs.generate(
        input_ids=torch.tensor([PROMPT]),
        input_features=features_of(pcm),
        num_delay_tokens=3,
        max_new_tokens=len(pcm) // (2 * STEP) - len(PROMPT),
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = found[0, len(PROMPT) :].tolist()
    return tokens


def test_tokens_are_those_that_transformers_generates(engine: LocalEngine, theirs: Any) -> None:
    pcm = speech(36, 9)
    fresh(engine)
    rid = engine.submit(PROMPT, GREEDY, streamed=Heard(pcm, ended=True))
    engine.run(check=True)
    outcome = engine.outcomes[rid, 0]
    expected = generated_by_transformers(theirs, pcm)
    assert len(set(expected)) > 5
    # after the last position one more token is drawn here, as transformers does of a stream
    assert (len(outcome.tokens), outcome.tokens[:-1]) == (36 - len(PROMPT) + 1, expected)
    assert outcome.finished is not None
    assert outcome.finished.reason == "stop"


@pytest.mark.parametrize("samples", [36 * STEP, 30 * STEP + 7])
def test_kyutais_tokens_are_those_that_transformers_generates(kyutai: Path, samples: int) -> None:
    pcm = speech(36, 9)[: 2 * samples]
    theirs = kyutai_of(kyutai)
    engine = LocalEngine(model_config(kyutai, max_num_seqs=1, max_num_batched_tokens=0))
    rid = engine.submit([VOCAB], GREEDY, streamed=Heard(pcm, ended=True))
    engine.run(check=True)
    expected = generated_by_kyutai(theirs, pcm)
    found = engine.outcomes[rid, 0].tokens
    assert len(set(expected)) > 5
    assert len(expected) > 2 * WINDOW
    # a frame that is not full is a position here too
    assert (len(found), found[: len(expected)]) == (-(-samples // STEP), expected)


def submit_all(streaming: Streaming, pcms: list[bytes]) -> list[list[int]]:
    """Each alone, all of it at once."""
    found = []
    engine = streaming.engine
    for seed, pcm in enumerate(pcms):
        rid = fresh(engine).submit(streaming.prompt, params_of(seed), [seed], streamed=Heard(pcm, ended=True))
        engine.run()
        found.append(engine.outcomes[rid, 0].tokens)
    return found


def params_of(seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=100, temperature=0.7 if seed % 2 else 0.0, logprobs=0)


@pytest.mark.proof(each="deaths")
@pytest.mark.parametrize("deaths", [0, 4])
def test_streams_in_odd_pieces_give_what_each_gives_at_once(streaming: Streaming, deaths: int) -> None:
    rng = random.Random(deaths)
    pcms = [speech(rng.randint(6, 20), seed) + bytes(2 * rng.randrange(900)) for seed in range(4)]
    expected, engine = submit_all(streaming, pcms), streaming.engine
    fresh(engine)
    rids = [engine.submit(streaming.prompt, params_of(seed), [seed], streamed=Heard()) for seed in range(len(pcms))]
    left = dict(zip(rids, pcms, strict=True))
    while left:
        rid = rng.choice(list(left))
        size = 2 * rng.choice([1, 160, 1000, STEP, 5 * STEP])
        piece, left[rid] = left[rid][:size], left[rid][size:]
        engine.append(rid, piece, last=not left[rid])
        if not left[rid]:
            del left[rid]
        if rng.random() < 0.3:
            dies = bool(deaths) and rng.random() < 0.2
            deaths -= dies
            run(engine, dies=dies)
    engine.run(check=True)
    assert [engine.outcomes[rid, 0].tokens for rid in rids] == expected
    ends = [engine.outcomes[rid, 0].finished for rid in rids]
    assert all(end is not None and end.reason == "stop" for end in ends)


def test_a_stream_that_lost_its_row_hears_everything_again(streaming: Streaming) -> None:
    pcms = [speech(44, seed) for seed in range(5)]
    expected, engine = submit_all(streaming, pcms), streaming.engine
    fresh(engine, 7)
    rids = [engine.submit(streaming.prompt, params_of(seed), [seed], streamed=Heard()) for seed in range(len(pcms))]
    piece = 2 * 3 * STEP
    for at in range(0, len(pcms[0]), piece):
        for rid, pcm in zip(rids, pcms, strict=True):
            engine.append(rid, pcm[at : at + piece], last=at + piece >= len(pcm))
        engine.run(check=True)
    assert [engine.outcomes[rid, 0].tokens for rid in rids] == expected
    assert engine.scheduler.stats().preemptions > 0, "the pool was not too small"


def run(engine: LocalEngine, *, dies: bool) -> None:
    """Runs until all audio is transcribed; before the first step the worker may crash."""
    looks = iter([dies])
    engine.run(check=True, dies=lambda: next(looks, False))


def test_start_up_says_what_streams_keep_and_how_positions_follow_samples(folder: Path, engine: LocalEngine) -> None:
    ready = engine.ready
    assert ready.stream == StreamShape(FIRST, STEP)
    each = 6144
    assert {line.what: line.bytes for line in ready.memory}["streams"] == 5 * each
    with pytest.raises(SetupError, match="nothing is left for tokens"):
        LocalEngine(model_config(folder, max_num_seqs=5, max_num_batched_tokens=0, kv_cache_memory=5 * each))
    with pytest.raises(SetupError, match="have no scales for it"):
        LocalEngine(model_config(folder, max_num_batched_tokens=0, kv_cache_dtype="fp8"))
    with pytest.raises(CheckpointError, match="no dummy weights"):
        LocalEngine(model_config(folder, max_num_batched_tokens=0, load_format="dummy"))


def test_a_device_keeps_what_its_largest_step_takes_for_it(folder: Path) -> None:
    mib = 1 << 20
    options = model_config(folder, max_num_seqs=5, max_num_batched_tokens=0, kv_cache_memory=None)
    options = msgspec.structs.replace(options, gpu_memory_fraction=1.0)
    block = 2 * 2 * 2 * 8 * 16 * 4
    device = FakeDevice(
        total=20 * mib + 5 * 6144 + 7 * block + 99, allocated=10 * mib, outside=4 * mib, activations=6 * mib
    )
    setup = set_up_on(options, lambda *_: None, device)
    assert (setup.ready.num_blocks, setup.ready.max_model_len) == (7, 7 * 16)


def test_a_position_that_has_nothing_to_hear_is_an_error(model: StreamedTranscriber) -> None:
    stream = model.encoder.begin()
    model.encoder.feed(stream, bytes(2 * (FIRST - 1)), ended=False)
    with pytest.raises(ValueError, match="needs 1 samples that have yet to come"):
        model.encoder.listen(stream, 1)
