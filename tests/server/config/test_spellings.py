"""Names that options had before, and that vLLM has for them."""

import re
from functools import reduce
from pathlib import Path

import pytest

from stentor.server.config.config import Config, ConfigError
from stentor.server.main.commands import _build_parser, _given, _parse_arguments
from stentor.server.options import elsewhere
from stentor.server.options.option import OPTIONS
from stentor.server.options.reading import read_config


def _read(*flags: str) -> Config:
    return read_config(_given(_parse_arguments(["serve", *flags])), {})


def test_a_name_that_an_option_had_before_is_taken_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, variables in (({"max-inflight-bytes": "64MiB"}, {}), ({}, {"STENTOR_MAX_HELD_BODY_SIZE": "64MiB"})):
        assert read_config(flags, variables).overload.max_inflight_bytes == 64 << 20
    assert _read("--max-held-body-size", "64MiB").overload.max_inflight_bytes == 64 << 20
    parser, _ = _build_parser()
    with pytest.raises(SystemExit):
        parser.parse_args(["serve", "--help"])
    assert "max-held-body-size" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spelling", "given", "name"),
    [
        ("share", "2", "chat-weight"),
        ("transcription-share", "2", "transcription-weight"),
        ("asr-weight", "2", "transcription-weight"),
        ("embedding-share", "2", "embedding-weight"),
        ("realtime-audio-ahead", "2", "realtime-playback-lead"),
        ("max-queued-sounds", "2", "max-queued-audio-files"),
        ("tool-server", "calc=http://127.0.0.1:1/mcp", "mcp-server"),
        ("gpu-memory-utilization", "0.5", "gpu-memory-fraction"),
        ("max-num-queued-reqs", "3", "max-queued-requests"),
        ("tp", "2", "tensor-parallel-size"),
        ("ssl-certfile", __file__, "tls-cert"),
        ("ssl-keyfile", __file__, "tls-key"),
        ("ssl-ca-certs", __file__, "tls-client-ca"),
    ],
)
def test_names_of_before_and_of_vllm_are_taken(spelling: str, given: str, name: str) -> None:
    (option,) = [each for each in OPTIONS if each.name == name]
    config = read_config({}, {f"STENTOR_{spelling.upper().replace('-', '_')}": given})
    assert reduce(getattr, option.path.split("."), config) == option.kind.parse(given)
    assert reduce(getattr, option.path.split("."), _read(f"--{spelling}", given)) == option.kind.parse(given)


def test_the_short_option_of_vllm_and_its_option_for_the_model_are_taken() -> None:
    assert _build_parser()[0].parse_args(["serve", "--model", "a/b", "--port", "1"]).model == "a/b"
    assert _read("-tp", "2").engine.worker.tensor_parallel_size == 2


def test_a_switch_may_be_turned_off_by_the_name_that_vllm_has_for_it(tmp_path: Path) -> None:
    assert not _read("--no-enable-prefix-caching").engine.scheduler.prefix_cache
    (tmp_path / "c.toml").write_text("no-enable-prefix-caching = true\n")
    config = read_config({"config": str(tmp_path / "c.toml")}, {})
    assert not config.engine.scheduler.prefix_cache
    with pytest.raises(ConfigError, match="given twice"):
        read_config({}, {"STENTOR_PREFIX_CACHE": "1", "STENTOR_ENABLE_PREFIX_CACHING": "1"})
    with pytest.raises(ConfigError, match=r"^--enable-prefix-caching: prefix-cache is given twice"):
        _read("--prefix-cache", "--no-enable-prefix-caching")


def test_what_is_wrong_with_an_option_is_said_of_the_name_that_was_given() -> None:
    with pytest.raises(ConfigError, match=r"^--ssl-certfile: expected a file that exists"):
        _read("--ssl-certfile", "/no/such/file")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("tokenizer-mode", "here it is --renderer"),
        ("hf-overrides", "there is no such thing here: a model is what its config.json says"),
        ("ctx-size", "here it is --max-model-len"),
    ],
)
def test_an_option_that_other_servers_have_says_what_to_do(name: str, what: str, tmp_path: Path) -> None:
    """Wherever it comes from."""
    with pytest.raises(ConfigError, match=f"^unknown option --{name}: {what} "):
        _parse_arguments(["serve", f"--{name}", "1"])
    variable = f"STENTOR_{name.upper().replace('-', '_')}"
    with pytest.raises(ConfigError, match=f"^{variable}: no such option: {what}$"):
        read_config({}, {variable: "1"})
    (tmp_path / "c.toml").write_text(f"{name} = 1\n")
    with pytest.raises(ConfigError, match=f"no option '{name}': {what}$"):
        read_config({"config": str(tmp_path / "c.toml")}, {})


def test_options_of_other_servers_that_change_no_answer_are_taken_and_said_to_have_no_effect() -> None:
    given = ["--enable-auto-tool-choice", "--api-server-count", "4", "owner/model", "--no-enable-chunked-prefill"]
    for command in (["serve"], ["run-batch", "-i", "a", "-o", "b"]):
        arguments = _parse_arguments([*command, *given, "--attention-backend=FLASH_ATTN"])
        options = ["--enable-auto-tool-choice", "--api-server-count", "--no-enable-chunked-prefill"]
        assert arguments.harmless == [*options, "--attention-backend"]
        assert all(elsewhere.harmless(option.removeprefix("--")) for option in arguments.harmless)
        assert arguments.model == "owner/model", "a switch does not take it for its value"
        assert "harmless" not in _given(arguments)
    for variable in ("STENTOR_ENABLE_AUTO_TOOL_CHOICE", "STENTOR_API_SERVER_COUNT"):
        with pytest.raises(ConfigError, match="leave it out"):
            read_config({}, {variable: "1"})


def test_what_turns_a_switch_off_elsewhere_does_so_here() -> None:
    assert not _read("--enforce-eager").engine.worker.cuda_graphs
    assert not _read("--disable-radix-cache").engine.scheduler.prefix_cache
    assert read_config({}, {"STENTOR_ENFORCE_EAGER": "0"}).engine.worker.cuda_graphs
    with pytest.raises(ConfigError, match="cuda-graphs is given twice"):
        _read("--enforce-eager", "--cuda-graphs")


@pytest.mark.parametrize(("said", "meant"), [("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")])
def test_a_dtype_may_have_vllm_s_other_name(said: str, meant: str) -> None:
    config = _read("--dtype", said, "--embedding-dtype", said)
    assert (config.engine.worker.dtype, config.embedding.dtype) == (meant, meant)


def test_what_other_servers_have_is_no_option_here_and_what_is_named_is_one() -> None:
    known = {spelling for option in OPTIONS for spelling in option.spellings}
    told = {
        **elsewhere._OTHERWISE,
        **elsewhere._ABSENT,
        **elsewhere.HARMLESS_SWITCHES,
        **elsewhere.HARMLESS_VALUES,
    }
    assert not known & told.keys()
    named = {word for text in told.values() for word in re.findall(r"--([a-z-]+)", text)}
    assert named <= known
