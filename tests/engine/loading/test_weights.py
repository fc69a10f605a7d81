"""Weights as they come out of every format, against transformers' own."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.torch import save_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from stentor.engine.loading import gguf_weights as weights_module
from stentor.engine.loading import weights as weights_of_safetensors
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.weight_files import tensors_of
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.spec.model import with_mixers
from stentor.engine.model_config.spec.positions import RopeConfig
from stentor.tests.engine.loading.tiny_gguf import ARCHITECTURES, tiny_model, write_gguf
from stentor.tests.examples import examples

Weights = dict[str, torch.Tensor]


def loaded(path: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Weights:
    pairs = [(name, tensor.clone()) for name, tensor in iterate_weights(open_checkpoint(path), dtype, **options)]
    found = dict(pairs)
    assert len(found) == len(pairs), "a name came twice"
    return found


def expected(model: transformers.PreTrainedModel) -> Weights:
    weights = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return weights


def assert_same(found: Weights, wanted: Weights, tolerance: float = 0.0) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        worst = (found[name] - tensor).abs().max().item()
        assert found[name].shape == tensor.shape, name
        assert worst <= tolerance, f"{name} differs by {worst}"


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_gguf_file_gives_back_the_model_it_was_made_from(arch: str, tmp_path: Path) -> None:
    model = tiny_model(arch)
    write_gguf(tmp_path / "m.gguf", model, arch)
    # The +1 that Gemma's and Nemotron's files carry costs their norms a rounding.
    assert_same(loaded(tmp_path), expected(model), 1e-7 if arch.startswith(("gemma", "nemotron")) else 0.0)


@pytest.mark.proof(each="arch")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_gguf_file_describes_the_model_it_was_made_from(arch: str, tmp_path: Path) -> None:
    model = tiny_model(arch)
    write_gguf(tmp_path / "m.gguf", model, arch)
    found = open_checkpoint(tmp_path).decoder
    wanted = model_spec_from_hf(model.config.to_dict())
    mixer = found.layers[0].attention
    if arch == "phi3":
        attention = (1 + np.log(4.0) / np.log(32)) ** 0.5
        assert mixer.rope is not None
        assert mixer.rope.attention_factor in (None, pytest.approx(attention))
    assert wanted.layers[0].attention.scale == pytest.approx(mixer.scale)
    assert found == with_mixers(wanted, scale=mixer.scale)
    assert found.shapes() == {name: tuple(t.shape) for name, t in expected(model).items()}


@pytest.mark.proof(each="arch")
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"])
def test_tiny_gguf_files_mean_the_same_to_transformers(arch: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model = tiny_model(arch)
    write_gguf(path, model, arch, gguf.GGMLQuantizationType.Q8_0)
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    ours = loaded(path)
    assert_same(ours, {name: theirs[name].reshape(ours[name].shape) for name in ours}, 1e-7)


@pytest.mark.parametrize("quantization", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_quantised_matrices_come_out_as_the_reference_decodes_them(quantization: str, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[quantization]
    model = tiny_model("qwen2")
    write_gguf(tmp_path / "m.gguf", model, "qwen2", kind)
    found = loaded(tmp_path)
    for name, weight in expected(model).items():
        if weight.ndim == 2:
            stored = gguf.quants.quantize(weight.numpy(), kind)
            weight = torch.from_numpy(np.array(gguf.quants.dequantize(stored, kind), np.float32))
        assert torch.equal(found[name], weight), name


@pytest.mark.parametrize("pieces", [1, 100, 1000])
def test_tensors_read_in_pieces_are_whole(pieces: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("granite")
    write_gguf(tmp_path / "m.gguf", model, "granite")
    monkeypatch.setattr(weights_module, "PIECE_ELEMENTS", pieces)
    assert_same(loaded(tmp_path), expected(model))


def test_a_split_gguf_model_gives_back_the_model_it_was_made_from(tmp_path: Path) -> None:
    """The factors of phi3's rotation are in one of the files."""
    model = tiny_model("phi3")
    write_gguf(tmp_path / "m.gguf", model, "phi3", split=9)
    assert len(list(tmp_path.iterdir())) == 3
    assert_same(loaded(tmp_path, torch.float32), expected(model))


def test_gguf_weights_are_rounded_to_the_dtype_asked_for(tmp_path: Path) -> None:
    model = tiny_model("llama")
    write_gguf(tmp_path / "m.gguf", model, "llama")
    for dtype in (torch.bfloat16, torch.float16):
        assert_same(loaded(tmp_path, dtype), {name: tensor.to(dtype) for name, tensor in expected(model).items()})


@pytest.mark.parametrize("shard_size", ["20KB", "1GB"])
def test_safetensors_give_back_the_model_they_were_made_from(shard_size: str, tmp_path: Path) -> None:
    model = tiny_model("phi3")
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert len(list(tmp_path.glob("*.safetensors"))) == (1 if shard_size == "1GB" else 10)
    found = loaded(tmp_path, torch.bfloat16)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}, "they come as they are stored"
    assert_same(found, expected(model))


def with_header(folder: Path, entry: dict[str, Any]) -> Path:
    """The checkpoint, whose first tensor's header says something else."""
    (file,) = folder.glob("*.safetensors")
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["model.norm.weight"] |= entry
    changed = json.dumps(header).encode()
    file.write_bytes(len(changed).to_bytes(8, "little") + changed + data[8 + length :])
    return folder


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"shape": [31]}, r"'model.norm.weight' has 128 bytes for \(31,\) of float32; fetch it again"),
        ({"dtype": "F16"}, r"'model.norm.weight' has 128 bytes for \(32,\) of float16; fetch it again"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(entry: dict[str, Any], message: str, tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        loaded(with_header(tmp_path, entry))


def test_tensors_that_begin_anywhere_in_a_file_are_read(tmp_path: Path) -> None:
    """A header of any length moves them: not every writer keeps them at multiples of their size."""
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    for padding in range(1, 5):
        with_header(tmp_path, {"note": "-" * padding})
        assert_same(loaded(tmp_path), expected(model))


def test_a_tensor_that_waits_for_another_is_whole_once_its_pages_were_given_back(tmp_path: Path) -> None:
    values = {name: torch.full((1 << 20,), number, dtype=torch.uint8) for number, name in enumerate("abc")}
    save_file(values, tmp_path / "m.safetensors")
    file = weights_of_safetensors._MappedFile(tmp_path / "m.safetensors")
    held = []
    for stored in tensors_of(tmp_path / "m.safetensors"):
        held.append(file.tensor(stored))
        file.let_go(stored.offset + stored.nbytes)
    assert all(torch.equal(found, wanted) for found, wanted in zip(held, values.values(), strict=True))


@pytest.mark.parametrize("form", ["safetensors", "gguf", "dummy"])
def test_progress_rises_to_the_total(form: str, tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    path = tmp_path
    if form == "gguf":
        path = tmp_path / "m.gguf"
        write_gguf(path, model, "llama")
    checkpoint = open_checkpoint(path, "dummy" if form == "dummy" else "auto")
    assert checkpoint.format == form
    reports: list[tuple[int, int]] = []
    shapes = checkpoint.decoder.shapes()
    for _ in iterate_weights(checkpoint, torch.float32, shapes=shapes, progress=lambda *at: reports.append(at)):
        pass
    done = [at for at, _ in reports]
    assert done == sorted(done)
    assert {total for _, total in reports} == {done[-1]}
    assert done[-1] == 4 * sum(p.numel() for p in model.parameters())


def test_a_stretch_stored_as_frequency_divisors_is_llama3s(tmp_path: Path) -> None:
    divisors = (1.0, 1.0, 3.5, 8.0)
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", extra={"rope_freqs.weight": divisors})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.decoder.layers[0].attention.rope == RopeConfig(frequency_divisors=divisors)
    assert "rope_freqs.weight" not in dict(iterate_weights(checkpoint, torch.float32))


def test_a_tensor_of_no_known_name_keeps_its_own(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("llama"), "llama", extra={"blk.0.attn_sinks.weight": [1.0, 2.0]})
    assert torch.equal(loaded(tmp_path)["blk.0.attn_sinks.weight"], torch.tensor([1.0, 2.0]))


def test_a_gguf_file_cut_short_after_opening_ends_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_model("llama"), "llama")
    found = iterate_weights(open_checkpoint(path), torch.float32)
    next(found)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(CheckpointError, match=r"it ends within .* fetch it again"):
        list(found)


@cache  # no fixture: hypothesis would print it
def sound_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, arch) for arch in ("llama", "gemma3", "phi3")]
        for file in files:
            write_gguf(file, tiny_model(file.name), file.name, gguf.GGMLQuantizationType.Q4_0)
        return [file.read_bytes() for file in files]


@settings(max_examples=examples(50, 750), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(which=st.integers(0, 2), flips=st.lists(st.integers(0, 8 * 3000), min_size=1, max_size=8))
@example(which=0, flips=[19_248])  # in the name of a bias: it is that of no layer then
def test_a_model_with_flipped_bits_is_refused_or_read_to_its_end(which: int, flips: list[int], tmp_path: Path) -> None:
    content = bytearray(sound_files()[which])
    for bit in flips:
        content[bit // 8] ^= 1 << bit % 8
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    try:
        for _ in iterate_weights(open_checkpoint(path), torch.float32):
            pass
    except CheckpointError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message


def test_dummy_weights_depend_on_seed_and_name_alone(tmp_path: Path) -> None:
    tiny_model("gemma3").config.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path, "dummy")
    shapes = checkpoint.decoder.shapes()
    first, again, other = (
        dict(iterate_weights(checkpoint, torch.bfloat16, shapes=shapes, seed=seed)) for seed in (1, 1, 2)
    )
    shorter = replace(checkpoint.decoder, layers=checkpoint.decoder.layers[:2]).shapes()
    assert {name: tuple(t.shape) for name, t in first.items()} == shapes
    assert_same(again, first)
    for name, tensor in iterate_weights(checkpoint, torch.bfloat16, shapes=shorter, seed=1):
        assert torch.equal(tensor, first[name])
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], first["model.layers.1.mlp.up_proj.weight"])
    assert float(first[name].float().std()) == pytest.approx(0.02, rel=0.1)
    assert float(first["model.norm.weight"].abs().max()) == 0.0, "Gemma's norms add the 1 themselves"


def test_a_large_dummy_matrix_does_not_repeat_its_rows(tmp_path: Path) -> None:
    model = tiny_model("llama").config
    model.vocab_size = 50_000
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path, "dummy")
    name, embedding = next(iterate_weights(checkpoint, torch.float32, shapes=checkpoint.decoder.shapes()))
    assert name == "model.embed_tokens.weight"
    assert len(torch.unique(embedding[:, 0])) > 45_000
