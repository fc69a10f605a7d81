"""A chat model with audio input, served for transcription beside a chat model of text."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.cache_groups import CacheGroup
from stentor.server.api.realtime.connections.serving import RealtimeServing, ServedModels
from stentor.server.api.realtime.listening.hypotheses import TranscriptionSettings
from stentor.server.api.realtime.listening.transcribing import ChatTurnTranscriber
from stentor.server.app.state import OpenedChat, ServerState
from stentor.server.app.text_side import TextSide
from stentor.server.asr.asking import ASKING
from stentor.server.common.keys import ANYONE
from stentor.server.config.adapters import AdapterRegistry
from stentor.server.config.model_registry import ModelRegistry, ModelRole, ServedModel
from stentor.server.config.models import ModelConfig
from stentor.server.generation.chat_model import GenerationDefaults
from stentor.server.parsing.output import OutputFormat
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.renderers.choose import TemplateRenderer
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.tests.fakes import FakeEngine, fake_state
from stentor.tests.server.asr.test_http import TRANSLATIONS, WavReader, post
from stentor.tests.server.audio.voices import tone
from stentor.tests.server.harness import CHAT, HELLO, in_memory
from stentor.tests.server.media.opened import open_media
from stentor.tests.server.test_adapters import write
from stentor.tests.support import audio_models

pytestmark = pytest.mark.anyio

QWEN3_ASR = "Qwen3ASRForConditionalGeneration"
BOTH = [ServedModel("chat", ("fake/model", "fake")), ServedModel("transcription", ("ears",))]


class Ears:
    """Qwen3-ASR over an engine that always gives the same transcript."""

    def __init__(self, folder: Path) -> None:
        audio_models.qwen3_asr(folder)
        self.tokenizer = load_tokenizer(folder)
        (self._audio,) = self.tokenizer.encode("<|audio_pad|>", False)
        (self._eos,) = self.tokenizer.encode("</s>", False)
        self._spec = MediaSpec({"audio": self._audio})
        self.media = open_media(folder, self._spec)

    def state(self, adapters: AdapterRegistry | None = None) -> tuple[ServerState, FakeEngine, FakeEngine]:
        """With the engines of the model that chats and of the one that transcribes."""
        said = [*self.tokenizer.encode("language German<asr_text>Guten Tag.", False), self._eos]
        chat, ears = FakeEngine(), FakeEngine(answer=lambda _prompt, _index: said, max_model_len=2048)
        assert ears.ready is not None
        groups = (CacheGroup("full"), CacheGroup("cross", capacity=4096))
        ears.ready = msgspec.structs.replace(ears.ready, groups=groups)
        pool = TokenizerPool(self.tokenizer)
        defaults = GenerationDefaults(eos_token_ids=(self._eos,))
        text = TextSide(pool, TemplateRenderer(pool), OutputFormat(), defaults)
        size = self.tokenizer.vocab_size
        model = OpenedChat(
            ModelConfig("owner/ears", served_as=("ears",)),
            ears,  # type: ignore[arg-type]  # in place of a client
            text,
            size,
            self.media,
            asking=ASKING[QWEN3_ASR],
        )
        runners: dict[ModelRole, FakeEngine] = {"transcription": ears}
        state = fake_state(
            chat, registry=ModelRegistry(BOTH, adapters), transcription=model, decoder=WavReader(), runners=runners
        )
        return state, chat, ears


@pytest.fixture(scope="module")
def ears(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ears]:
    made = Ears(tmp_path_factory.mktemp("qwen3_asr"))
    yield made
    made.media.close()


@pytest.mark.parametrize("fields", [[], [("model", "ears")], [("stream", "true")]])
async def test_files_go_to_it_and_conversations_to_the_other(ears: Ears, fields: list[tuple[str, str]]) -> None:
    state, chat, hearing = ears.state()
    answer = await post(state, fields, tone(1))
    assert answer.status_code == 200, answer.text
    assert '"text":"Guten Tag."' in answer.text, "of the answer, or of its last event"
    assert (len(chat.streams), len(hearing.streams)) == (0, 1)
    assert hearing.media[0][0].length == 13
    async with in_memory(state) as client:
        said = await client.post(CHAT, json={"messages": HELLO, "max_tokens": 2})
        refused = await client.post(CHAT, json={"model": "ears", "messages": HELLO})
    assert said.status_code == 200
    assert (len(chat.streams), len(hearing.streams)) == (1, 1)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "model"
    assert state.admission.memory.bytes == 0


async def test_requests_are_counted_under_its_name(ears: Ears) -> None:
    state, _, hearing = ears.state()
    await post(state, [], tone(1))
    page = state.metrics.render().decode()
    counted = len(hearing.streams[0].prompt)
    assert f'stentor:prompt_tokens_total{{model_name="ears"}} {counted}.0' in page
    assert 'stentor:prompt_tokens_total{model_name="fake/model"} 0.0' in page
    assert 'stentor:request_success_total{finished_reason="stop",model_name="ears"} 1.0' in page
    assert 'stentor:time_to_first_token_seconds_count{model_name="ears"} 1.0' in page
    assert 'stentor:time_to_first_token_seconds_count{model_name="fake/model"} 0.0' in page
    assert page.count("# TYPE stentor:generation_tokens_total counter") == 1


@pytest.mark.parametrize(
    ("fields", "path", "param"),
    [
        ([("response_format", "srt")], None, "response_format"),
        ([("language", "xx")], None, "language"),
        ([("prompt", "<|audio_pad|>")], None, "prompt"),
        ([("model", "fake")], None, "model"),
        ([], TRANSLATIONS, "model"),
    ],
)
async def test_what_it_cannot_do_is_refused_by_its_name(
    ears: Ears, fields: list[tuple[str, str]], path: str | None, param: str
) -> None:
    state, chat, hearing = ears.state()
    answer = await (post(state, fields, tone(1)) if path is None else post(state, fields, tone(1), path))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not chat.streams
    assert not hearing.streams


async def test_only_files_wait_for_its_start_and_notice_its_end(ears: Ears) -> None:
    state, _, hearing = ears.state()
    ready, hearing.ready = hearing.ready, None
    answer = await post(state, [], tone(1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "starting")
    async with in_memory(state) as client:
        assert (await client.post(CHAT, json={"messages": HELLO, "max_tokens": 2})).status_code == 200
    hearing.ready, hearing.failure = ready, "gone"
    assert (await post(state, [], tone(1))).status_code == 503
    assert state.admission.memory.bytes == 0


async def test_turns_of_sessions_are_written_down_by_it(ears: Ears) -> None:
    state, chat, hearing = ears.state()
    models = ServedModels(state.for_realtime)
    assert models.transcription_model(None, "model") == "ears"
    assert models.language("German", "language") == "de"
    transcribe = RealtimeServing(state.for_realtime).transcriber(ANYONE)
    assert isinstance(transcribe, ChatTurnTranscriber)
    turn = await transcribe(tone(1), TranscriptionSettings(), continued="", final=True)
    assert turn.text == "Guten Tag."
    assert (len(chat.streams), len(hearing.streams)) == (0, 1)


async def test_its_adapters_are_named_in_place_of_it(ears: Ears, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write(tmp_path_factory.mktemp("adapter") / "court")
    adapters = AdapterRegistry({"court": str(folder)}, kinds={"court": "transcription"})
    state, _, hearing = ears.state(adapters)
    (court,) = adapters
    for name in ("court", "ears"):
        assert (await post(state, [("model", name)], tone(1))).status_code == 200
        transcribe = RealtimeServing(state.for_realtime).transcriber(ANYONE)
        assert isinstance(transcribe, ChatTurnTranscriber)
        await transcribe(tone(1), TranscriptionSettings(model=name), continued="", final=True)
    found: list[AdapterRef | None] = hearing.adapters
    assert found == [court, court, None, None]
