"""A worker of a transcription model, from a checkpoint to transcripts, beside transformers and beside itself alone."""

import random
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from stentor.engine.models.encoder_decoder import EncoderDecoder
from stentor.engine.worker.compute.sync_compute import SyncCompute
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.limits import TRANSCRIPTION
from stentor.engine.worker.setup.setup import set_up_on
from stentor.protocols.ipc.audio import Alignment
from stentor.protocols.ipc.cache_groups import FULL, CacheGroup
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.server.options.model_facts import describe_model
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.engine.media import Audio
from stentor.tests.engine.tiny_whisper import BEGIN, CONTEXT, EOT, NO_SPEECH, RULES, SOT, VOCAB, window, write_whisper
from stentor.tests.engine.worker.fake_device import FakeDevice

GREEDY = SamplingParams(max_tokens=30, temperature=0.0, eos_token_ids=(EOT,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> LocalEngine:
    return LocalEngine(model_config(folder, max_num_seqs=6, max_num_batched_tokens=0))


def fresh(engine: LocalEngine) -> LocalEngine:
    engine.restart(engine.ready.num_blocks)
    return engine


def model_of(engine: LocalEngine) -> EncoderDecoder:
    assert isinstance(engine.runner.compute, SyncCompute)
    assert isinstance(engine.runner.compute.model, EncoderDecoder)
    return engine.runner.compute.model


def slot_bytes(engine: LocalEngine) -> int:
    """Keys and values of 1,500 positions, which are 94 blocks."""
    config = model_of(engine).config
    return 2 * config.num_layers * config.hidden_size * 94 * 16 * 4


def greedy_by_transformers(folder: Path, audio: Audio, prompt: list[int], count: int) -> tuple[list[int], float]:
    """Tokens drawn without rules, and the probability of NO_SPEECH after the prompt."""
    theirs = WhisperForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    samples = torch.frombuffer(bytearray(audio.pcm), dtype=torch.int16).float() / 32768
    features = WhisperFeatureExtractor()(samples.numpy(), sampling_rate=16_000, return_tensors="pt").input_features
    tokens = list(prompt)
    with torch.inference_mode():
        encoded = theirs.model.encoder(features)
        silences = []
        for _ in range(count):
            logits = theirs(decoder_input_ids=torch.tensor([tokens]), encoder_outputs=encoded).logits[0, -1]
            silences.append(float(logits.softmax(0)[NO_SPEECH]))
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :], silences[0]


def test_greedy_tokens_are_those_of_transformers(folder: Path, engine: LocalEngine) -> None:
    fresh(engine)
    audio = window(1, rules=None, no_speech=(1, NO_SPEECH))
    rid = engine.submit([SOT, 65], SamplingParams(max_tokens=20, temperature=0.0), audio=audio)
    engine.run(check=True)
    tokens, silence = greedy_by_transformers(folder, audio, [SOT, 65], 20)
    assert engine.outcomes[rid, 0].tokens == tokens
    alignment = engine.prompts[rid].alignment
    assert alignment is not None
    assert alignment.no_speech == pytest.approx(silence, rel=1e-3)


def random_request(seed: int) -> tuple[list[int], SamplingParams, Audio]:
    rng = random.Random(seed)
    prompt = [rng.randrange(EOT) for _ in range(rng.choice([0, 0, 5, 20]))] + [SOT, 65]
    if rng.random() < 0.25:
        prompt += [rng.randrange(EOT) for _ in range(12)]
        align = Alignment(len(prompt) - 12, 100)
        return prompt, SamplingParams(max_tokens=1), window(seed % 5, align=align)
    params = SamplingParams(
        max_tokens=rng.choice([4, 12, 30]),
        temperature=rng.choice([0.0, 0.7]),
        logprobs=rng.choice([None, 2]),
        eos_token_ids=(EOT,),
        logit_bias=((5, 1.0),) if rng.random() < 0.3 else (),
    )
    rules = RULES if rng.random() < 0.7 else None
    no_speech = (len(prompt) - 2, NO_SPEECH) if rng.random() < 0.5 else None
    return prompt, params, window(seed % 5, rules=rules, no_speech=no_speech)


def results_of(engine: LocalEngine, rids: list[int]) -> list[object]:
    found: list[object] = []
    for rid in rids:
        outcome, alignment = engine.outcomes[rid, 0], engine.prompts[rid].alignment
        assert outcome.finished is not None
        numbers = [entry.logprob for entry in outcome.logprobs]
        reported = None if alignment is None else (alignment.no_speech, *alignment.times, *alignment.probabilities)
        found.append((outcome.tokens, outcome.finished.reason, numbers, reported))
    return found


def test_many_windows_at_once_give_what_each_gives_alone(engine: LocalEngine) -> None:
    requests = [random_request(seed) for seed in range(14)]
    alone = []
    for number, (prompt, params, audio) in enumerate(requests):
        rid = fresh(engine).submit(prompt, params, [number], audio=audio)
        engine.run()
        alone += results_of(engine, [rid])
    fresh(engine)
    rids = [engine.submit(*given[:2], [number], audio=given[2]) for number, given in enumerate(requests)]
    engine.run(check=True)
    for one, other in zip(results_of(engine, rids), alone, strict=True):
        assert one[:2] == other[:2]  # type: ignore[index]
        assert one[2] == pytest.approx(other[2], abs=1e-4)  # type: ignore[index]
        assert one[3] == (None if other[3] is None else pytest.approx(other[3], abs=1e-4))  # type: ignore[index]


@pytest.mark.proof
def test_neither_deaths_nor_preemptions_change_a_transcript(engine: LocalEngine) -> None:
    requests = [random_request(100 + seed) for seed in range(9)]

    def transcripts(blocks: int, deaths: list[int]) -> list[object]:
        engine.restart(blocks)
        before = engine.steps
        rids = [engine.submit(*given[:2], [number], audio=given[2]) for number, given in enumerate(requests)]
        engine.run(check=True, dies=lambda: engine.steps - before in deaths and bool(deaths.pop(0)))
        return [found[:2] for found in results_of(engine, rids)]  # type: ignore[index]

    expected = transcripts(engine.ready.num_blocks, [])
    assert transcripts(engine.ready.num_blocks, [3, 11, 12]) == expected
    long = SamplingParams(max_tokens=50, temperature=0.7)
    requests = [([SOT, 65], long, window(seed % 4)) for seed in range(8)]
    expected = transcripts(engine.ready.num_blocks, [])
    assert transcripts(9, []) == expected
    assert engine.scheduler.stats().preemptions > 0, "the pool was not too small"


def test_an_alignment_says_when_each_token_is_spoken(engine: LocalEngine) -> None:
    audio = window(3, 4.0, align=Alignment(2, 200), no_speech=(0, NO_SPEECH))
    text = [7, 9, 11, 13, 15]
    rid = fresh(engine).submit([SOT, 65, *text], SamplingParams(max_tokens=1), audio=audio)
    engine.run()
    alignment = engine.prompts[rid].alignment
    assert alignment is not None
    assert alignment.no_speech is not None
    assert alignment.times == sorted(alignment.times)
    assert (len(alignment.times), len(alignment.probabilities)) == (6, 5)
    assert 0.0 <= alignment.times[0] <= alignment.times[-1] < 4.0
    assert all(0.0 <= value <= 1.0 for value in alignment.probabilities)


def test_transcripts_keep_to_the_rules(engine: LocalEngine) -> None:
    fresh(engine)
    params = SamplingParams(max_tokens=40, temperature=1.5, eos_token_ids=(EOT,))
    rids = [engine.submit([SOT], params, [seed], audio=window(seed % 3)) for seed in range(12)]
    engine.run()
    for rid in rids:
        tokens = engine.outcomes[rid, 0].tokens
        stamps = [token for token in tokens if token >= BEGIN]
        assert BEGIN <= tokens[0] <= BEGIN + 20
        assert stamps == sorted(stamps)
        assert not set(tokens) & set(RULES.suppressed)
    assert len({tuple(engine.outcomes[rid, 0].tokens) for rid in rids}) > 6


def test_prompt_logprobs_are_there_for_who_asks(engine: LocalEngine) -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    rid = fresh(engine).submit([SOT, 65, 7], params, audio=window(1))
    engine.run()
    found = engine.prompts[rid].logprobs
    assert found is not None
    assert [None if entry is None else entry.token for entry in found] == [None, 65, 7]


def test_what_is_no_token_has_no_probability(engine: LocalEngine) -> None:
    rid = fresh(engine).submit([SOT], GREEDY, audio=window(1, no_speech=(0, 5 * VOCAB)))
    engine.run()
    alignment = engine.prompts[rid].alignment
    assert alignment is not None
    assert alignment.no_speech == 0.0


def test_start_up_says_where_memory_goes_and_what_suits_a_model_that_hears(folder: Path, engine: LocalEngine) -> None:
    ready = engine.ready
    lines = {line.what: line for line in ready.memory}
    assert lines["encoded audio"].bytes == 6 * slot_bytes(engine)
    assert lines["encoded audio"].note.startswith("6 windows of 30 s")
    assert (ready.groups, ready.max_model_len, ready.num_blocks) == (
        (FULL, CacheGroup("cross", 1500, 6 * 1500)),
        CONTEXT,
        6 * CONTEXT // 16,
    )
    assert (ready.limits.max_encodings, ready.limits.max_mixed_encodings) == (4, 1)
    suited = LocalEngine(model_config(folder, max_num_seqs=0, max_num_batched_tokens=0, block_size=0))
    assert suited.ready.limits == TRANSCRIPTION["cpu"]


def test_what_a_window_and_a_token_keep_is_told_before_the_model_is_loaded(folder: Path) -> None:
    reported = {" ".join(line.split()) for line in describe_model(folder, ()).splitlines()}
    assert "KV a token 0.2 KiB in bfloat16 of 2 layers, full" in reported
    assert "KV a window 0.4 MiB in bfloat16 of 2 layers, 1,500 positions of the encoder" in reported
    assert any(line.startswith("fits this host") and "transcripts in" in line for line in reported)


def test_little_memory_holds_fewer_windows_and_says_so(folder: Path, engine: LocalEngine) -> None:
    each = slot_bytes(engine) + CONTEXT // 16 * 2 * 2 * 32 * 16 * 4
    small = LocalEngine(model_config(folder, max_num_seqs=6, max_num_batched_tokens=0, kv_cache_memory=2 * each + 9))
    assert CacheGroup("cross", 1500, 2 * 1500) in small.ready.groups
    assert "2 of 6 transcripts run at once" in small.ready.notes[-1]
    for seed in range(5):
        small.submit([SOT], GREEDY, audio=window(seed))
    small.run(check=True)
    assert all(outcome.finished is not None for outcome in small.outcomes.values())
    with pytest.raises(SetupError, match="no room for one window"):
        LocalEngine(model_config(folder, max_num_batched_tokens=0, kv_cache_memory=each - 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_batched_tokens": 63}, "an alignment is computed in one step, of up to 64 tokens"),
        ({"kv_cache_dtype": "fp8", "max_num_batched_tokens": 0}, "fp8: transcription models have no scales for it"),
        ({"kv_cache_dtype": "int8", "max_num_batched_tokens": 0}, "int8: transcription models have no scales for it"),
        ({"max_model_len": 65, "max_num_batched_tokens": 0}, "was made for at most 64"),
    ],
)
def test_options_that_do_not_suit_are_refused(folder: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        LocalEngine(model_config(folder, **changes))


@pytest.mark.proof
def test_a_device_keeps_what_its_largest_step_takes_and_gives_windows_the_rest(
    folder: Path, engine: LocalEngine
) -> None:
    each = slot_bytes(engine) + CONTEXT // 16 * 2 * 2 * 32 * 16 * 4
    mib = 1 << 20

    def device(room: int) -> FakeDevice:
        return FakeDevice(total=22 * mib + room, allocated=10 * mib, outside=5 * mib, activations=7 * mib)

    options = model_config(folder, max_num_seqs=6, max_num_batched_tokens=0, kv_cache_memory=None)
    options = msgspec.structs.replace(options, gpu_memory_fraction=1.0)
    setup = set_up_on(options, lambda *_: None, device(4 * each + 100))
    assert CacheGroup("cross", 1500, 4 * 1500) in setup.ready.groups
    with pytest.raises(SetupError, match="no room for one window"):
        set_up_on(options, lambda *_: None, device(each - 100))


def test_a_step_that_encodes_pauses_between_its_parts_where_others_share_the_device(engine: LocalEngine) -> None:
    fresh(engine)
    pauses: list[None] = []
    assert engine.runner.extras is not None
    engine.runner.extras.yield_device = lambda: pauses.append(None)
    rid = engine.submit([SOT, 65], GREEDY, audio=window(3))
    engine.run()
    engine.runner.extras.yield_device = None
    assert engine.outcomes[rid, 0].finished is not None
    assert len(pauses) > 3 * 2, "layers of the encoder"
