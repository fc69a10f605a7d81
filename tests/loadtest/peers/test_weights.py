"""Forms of one model: made once, equal in value, and readable by the servers they are for."""

import json
import stat
from pathlib import Path

import gguf
import pytest
import torch
import transformers

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.loadtest.peers.weights import Weights, WeightsError, write_bf16_gguf
from stentor.tests.engine.loading.tiny_gguf import tiny_model, write_gguf

QUANTIZER = """#!/bin/sh
echo "$3" >> "{calls}"
{body}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A random model in Q4_1, with a tokenizer that transformers can read."""
    model = tiny_model("llama")
    path = tmp_path / "tiny.gguf"
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *"abcdefghijklmnopqrstuvwxyz",
        "Ġ",
        *(f"Ġ{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    ]
    plain = tmp_path / "plain.gguf"
    write_gguf(plain, model, "llama", gguf.GGMLQuantizationType.Q4_1)
    _with_tokenizer(plain, path, [*pieces, *(f"<{n}>" for n in range(64 - len(pieces)))])
    plain.unlink()
    return path


def _with_tokenizer(source: Path, target: Path, pieces: list[str]) -> None:
    """The same file with a byte-level vocabulary."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture", "tokenizer.ggml.tokens")):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(pieces)
    writer.add_token_merges([f"Ġ {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _quantizer(tmp_path: Path, body: str) -> Path:
    """Stands where llama-quantize would; what it makes is not looked into."""
    script = tmp_path / "quantize"
    script.write_text(QUANTIZER.format(calls=tmp_path / "calls", body=body))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def _values(path: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in iterate_weights(open_checkpoint(path), torch.bfloat16)}


def test_the_folder_and_the_file_in_bfloat16_hold_the_bits_of_the_quantised_source(
    source: Path, tmp_path: Path
) -> None:
    weights = Weights(source, tmp_path / "shelf", tmp_path / "no-quantizer")
    folder, file = weights.form("hf"), weights.form("bf16")
    assert open_checkpoint(folder).dtype == open_checkpoint(file).dtype == "bfloat16"
    expected = _values(source)
    for made in (_values(folder), _values(file)):
        assert made.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(made[name], tensor), name


def test_transformers_reads_the_folder_and_computes_with_the_same_weights(source: Path, tmp_path: Path) -> None:
    folder = Weights(source, tmp_path / "shelf", tmp_path / "no-quantizer").form("hf")
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    expected = _values(source)
    for name, tensor in model.state_dict().items():
        if name in expected:
            assert torch.equal(tensor, expected[name]), name
    assert len(model.state_dict()) == len(expected)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer("a b", add_special_tokens=False)["input_ids"] == [3, 31]


def test_metadata_goes_along_into_bfloat16(source: Path, tmp_path: Path) -> None:
    write_bf16_gguf(source, tmp_path / "made.gguf")
    before, after = (gguf.GGUFReader(path).fields for path in (source, tmp_path / "made.gguf"))
    kept = [name for name in before if not name.startswith("GGUF.") and name != "general.file_type"]
    assert len(kept) > 10
    for name in kept:
        assert after[name].contents() == before[name].contents(), name
    assert after["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_BF16


def test_a_form_is_made_once_and_again_when_the_source_changes(source: Path, tmp_path: Path) -> None:
    quantizer = _quantizer(tmp_path, 'cp "$1" "$2"')
    made = Weights(source, tmp_path / "shelf", quantizer).form("q4_0")
    assert Weights(source, tmp_path / "shelf", quantizer).form("q4_0") == made
    assert (tmp_path / "calls").read_text() == "Q4_0\n"
    source.touch()
    assert Weights(source, tmp_path / "shelf", quantizer).form("q4_0") != made


def test_a_source_that_is_q4_1_is_served_as_it_is(source: Path, tmp_path: Path) -> None:
    weights = Weights(source, tmp_path / "shelf", tmp_path / "no-quantizer")
    assert weights.form("q4_1") == source
    assert not (tmp_path / "shelf").exists()


def test_without_llama_quantize_the_error_says_how_to_get_it(source: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"make peers ARGS=llama\.cpp"):
        Weights(source, tmp_path / "shelf", tmp_path / "no-quantizer").form("q4_0")


def test_a_quantizer_that_fails_leaves_nothing_behind_that_looks_made(source: Path, tmp_path: Path) -> None:
    weights = Weights(source, tmp_path / "shelf", _quantizer(tmp_path, 'touch "$2"; echo no room; exit 3'))
    for _ in range(2):
        with pytest.raises(WeightsError, match="status 3: no room"):
            weights.form("q4_0")
    assert (tmp_path / "calls").read_text() == "Q4_0\nQ4_0\n"


def test_a_folder_is_its_own_form_and_gives_no_other(source: Path, tmp_path: Path) -> None:
    folder = Weights(source, tmp_path / "shelf", tmp_path / "none").form("hf")
    weights = Weights(folder, tmp_path / "shelf", tmp_path / "none")
    assert weights.form("hf") == folder
    with pytest.raises(WeightsError, match=r"name a \.gguf file"):
        weights.form("bf16")
