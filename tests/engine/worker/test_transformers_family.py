"""A worker whose model runs on transformers' modules: what start-up says, what it refuses, and what it costs."""

import json
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.families.transformers import TransformersText
from stentor.engine.worker.setup.setup import open_family, set_up
from stentor.server.options.model_facts import describe_model
from stentor.tests.engine.loading.tiny_gguf import tiny_model, write_gguf
from stentor.tests.engine.local import model_config
from stentor.tests.parity import tiny
from stentor.tests.parity.tiny import transformers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny OPT whose embeddings are of another size than its stream, never written to."""
    found = tmp_path_factory.mktemp("opt")
    sizes = {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.OPTConfig(vocab_size=320, max_position_embeddings=128, word_embed_proj_dim=32, **sizes)
    tiny.make_of(config, "opt", found)
    return found


def _ignore(phase: str, done: int, total: int) -> None:
    pass


def _notes(folder: Path, **changes: Any) -> list[str]:
    return list(set_up(model_config(folder, **changes), _ignore).ready.notes)


def test_start_up_says_whose_modelling_code_runs(folder: Path, tmp_path: Path) -> None:
    reported = "OPTForCausalLM runs on transformers' modelling code, slower than a native model"
    assert any(note.startswith(reported) for note in _notes(folder))
    tiny.make("llama", tmp_path)
    assert not any("transformers" in note for note in _notes(tmp_path))
    reported = "LlamaForCausalLM runs on transformers' modelling code"
    assert any(note.startswith(reported) for note in _notes(tmp_path, model_impl="transformers"))


def test_env_tells_what_such_a_model_is_made_of(folder: Path) -> None:
    reported = describe_model(folder, ())
    layer = 4 * 65 * 64 + 65 * 96 + 97 * 64 + 4 * 64
    parameters = 320 * 32 + 130 * 64 + 2 * 32 * 64 + 3 * layer + 2 * 64
    lines = [" ".join(line.split()) for line in reported.splitlines()]
    assert "architecture OPTForCausalLM" in lines
    assert "runs on transformers' modelling code, an operation a call" in lines
    assert f"parameters {parameters / 1e6:.1f} M as stored" in lines
    assert "3 of attention of 4 heads to 4 of 16, sees all before; a network of transformers' own" in lines
    assert "work a token" not in reported, "the products of another library's modules are not known"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_invariant": True}, "--batch-invariant: torch's products, which transformers' modules use, depend on"),
        ({"quantization": "int8"}, "--quantization int8: transformers' modules keep plain weights"),
    ],
)
def test_options_that_need_native_layers_are_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError) as caught:
        set_up(model_config(folder, **change), _ignore)
    assert str(caught.value).startswith(message)


def test_a_gguf_file_is_refused_for_transformers_modules(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model("llama"), "llama")
    with pytest.raises(CheckpointError, match="--model-impl transformers reads safetensors, not gguf"):
        open_checkpoint(path, model_impl="transformers")


def test_a_model_that_transformers_modules_do_not_run_here_is_refused_by_the_option_that_asked_for_them(
    tmp_path: Path,
) -> None:
    tiny.make("qwen3-next", tmp_path)
    with pytest.raises(CheckpointError, match="with --model-impl transformers, "):
        open_family(model_config(tmp_path, model_impl="transformers"), "cpu")


def test_code_that_a_checkpoint_brings_is_never_run(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "was_run"
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    (tmp_path / "modeling_mine.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    (tmp_path / "configuration_mine.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "configuration_mine.MineConfig",
        "AutoModelForCausalLM": "modeling_mine.MineForCausalLM",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    family = open_family(model_config(tmp_path), "cpu")
    assert isinstance(family, TransformersText), "transformers' own OPT runs"
    own = {**config, "architectures": ["MineForCausalLM"], "model_type": "mine"}
    (tmp_path / "config.json").write_text(json.dumps(own))
    with pytest.raises(CheckpointError, match="code in checkpoints is never run"):
        open_family(model_config(tmp_path), "cpu")
    assert not marker.exists()
