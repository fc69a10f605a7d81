"""Opening checkpoints: what is found in folders and files, and what is said when it cannot be used."""

import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from safetensors.torch import save_file

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.download.hub import resolve_model
from stentor.engine.loading.download.wheel import FetchError
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.generation_config import GenerationConfig
from stentor.engine.model_config.spec.model import dense_mlp
from stentor.engine.quantization.formats import GGUFFormat
from stentor.protocols.ipc.config import LoadFormat
from stentor.tests.engine.loading.tiny_gguf import header, key, tiny_model, write_gguf
from stentor.tests.parity import tiny


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in three bfloat16 shards, never written to."""
    folder = tmp_path_factory.mktemp("llama")
    model = tiny_model("llama").bfloat16()
    model.generation_config.update(
        do_sample=True,
        eos_token_id=[5, 3],
        temperature=0.6,
        top_k=20,
        top_p=0.9,
        repetition_penalty=1.1,
        max_new_tokens=100,
    )
    model.save_pretrained(folder, max_shard_size="20KB")
    return folder


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "package" / "tiny.gguf"
    path.parent.mkdir()
    write_gguf(path, tiny_model("llama"), "llama")
    return path


def copied(folder: Path, to: Path, **changes: Any) -> Path:
    """Links to everything in ``folder``, with fields of config.json changed."""
    for file in folder.iterdir():
        if file.name != "config.json":
            (to / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **changes}))
    return to


def refusal(path: Path, load_format: LoadFormat = "auto") -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path, load_format)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def test_a_pointer_of_git_lfs_is_told_from_a_broken_file(saved: Path, tmp_path: Path) -> None:
    shutil.copy(saved / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "it is a pointer of Git LFS in place of the file; run git lfs pull" in refusal(tmp_path)


def test_an_adapter_in_place_of_a_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(FetchError, match=r"it is an adapter; name its base model, .* --lora-modules NAME="):
        resolve_model(str(tmp_path))


def test_a_sharded_folder_is_opened(saved: Path) -> None:
    found = open_checkpoint(saved)
    assert found.format == "safetensors"
    assert found.folder == saved
    assert len(found.files) > 1
    assert found.dtype == "bfloat16"
    assert found.quantized is None
    weights = sum(p.numel() for p in tiny_model("llama").parameters())
    assert found.total_bytes == 2 * weights
    assert found.config.architecture == "LlamaForCausalLM"
    assert found.decoder.eos_token_ids == (2,)


def test_end_tokens_are_the_union_and_sampling_is_the_generation_configs(saved: Path) -> None:
    assert open_checkpoint(saved).defaults == GenerationConfig(
        eos_token_ids=(2, 3, 5),
        temperature=0.6,
        top_k=20,
        top_p=0.9,
        repetition_penalty=1.1,
        max_new_tokens=100,
    )


def test_without_a_generation_config_nothing_is_recommended(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    (folder / "generation_config.json").unlink()
    assert open_checkpoint(folder).defaults == GenerationConfig(eos_token_ids=(2,))


@pytest.mark.parametrize(
    ("said", "ends", "implied"), [({}, (), (2,)), ({"eos_token_id": None}, (), ()), ({"eos_token_id": 9}, (9,), ())]
)
def test_a_file_without_end_tokens_has_those_of_its_class_to_fall_back_on(
    said: dict[str, object], ends: tuple[int, ...], implied: tuple[int, ...], saved: Path, tmp_path: Path
) -> None:
    folder = copied(saved, tmp_path)
    (folder / "generation_config.json").unlink()
    told = json.loads((file := folder / "config.json").read_text())
    del told["eos_token_id"]
    file.write_text(json.dumps({**told, **said}))
    found = open_checkpoint(folder).defaults
    assert (found.eos_token_ids, found.implied_eos_token_ids) == (ends, implied)


def test_the_end_tokens_of_a_text_part_are_fallen_back_on_where_the_whole_names_none(tmp_path: Path) -> None:
    text = {**tiny.SHAPE, "model_type": "llama", "eos_token_id": [5, 3]}
    told = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(told))
    found = open_checkpoint(tmp_path, "dummy").defaults
    assert (found.eos_token_ids, {*found.implied_eos_token_ids}) == ((), {3, 5})


@pytest.mark.parametrize("load_format", ["auto", "gguf"])
def test_a_gguf_file_is_found_by_name_by_folder_and_below_it(gguf_file: Path, load_format: LoadFormat) -> None:
    found = [open_checkpoint(path, load_format) for path in (gguf_file, gguf_file.parent, gguf_file.parent.parent)]
    assert found[0] == found[1] == found[2]
    assert found[0].format == "gguf"
    assert found[0].files == (gguf_file,)
    assert found[0].folder == gguf_file.parent


def test_the_demo_model_is_what_its_makers_say(demo_gguf: Path) -> None:
    found = open_checkpoint(demo_gguf)
    config = found.decoder
    mixer, mlp = config.layers[0].attention, dense_mlp(config)
    assert (config.architecture, config.hidden_size, mlp.inner) == ("LlamaForCausalLM", 576, 1536)
    assert (len(config.layers), mixer.heads, mixer.kv_heads, mixer.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.max_position, config.tie_embeddings) == (49152, 8192, True)
    assert mixer.rope is not None
    assert mixer.rope.theta == 100000.0
    assert config.norm_eps == pytest.approx(1e-5)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert found.defaults == GenerationConfig(eos_token_ids=(2,))
    assert found.dtype == "Q4_1"
    assert found.quantized is not None
    assert found.quantized.format_of("model.layers.29.mlp.down_proj") == GGUFFormat("Q4_1")
    assert found.quantized.format_of("model.embed_tokens") == GGUFFormat("Q8_0")
    assert found.quantized.format_of("model.norm") is None


def test_dummy_weights_need_only_the_description(saved: Path, gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    real, dummy = open_checkpoint(saved), open_checkpoint(tmp_path, "dummy")
    assert (dummy.format, dummy.files, dummy.dtype) == ("dummy", (), "bfloat16")
    assert dummy.config == real.config
    stored = open_checkpoint(gguf_file)
    dummy = open_checkpoint(gguf_file, "dummy")
    assert (dummy.format, dummy.files) == ("dummy", ())
    assert replace(dummy.config) == stored.config


def test_a_path_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    assert "There is no model at" in refusal(tmp_path / "none")


def test_a_folder_without_a_model_says_what_was_expected(tmp_path: Path) -> None:
    assert "expected config.json with *.safetensors or pytorch_model.bin, or one .gguf file" in refusal(tmp_path)
    assert "config.json is missing" in refusal(tmp_path, "safetensors")


def test_a_file_of_another_kind_is_refused(tmp_path: Path, gguf_file: Path) -> None:
    other = tmp_path / "model.bin"
    other.write_bytes(b"x")
    assert "expected a folder or a .gguf file" in refusal(other)
    assert "expected a folder with config.json" in refusal(gguf_file, "safetensors")


def test_several_gguf_files_are_named(tmp_path: Path, gguf_file: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).symlink_to(gguf_file)
    assert "it holds 2 .gguf files (a.gguf, b.gguf); name the one to serve" in refusal(tmp_path)


def test_a_missing_config_and_missing_shards_are_named(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.unlink()
    assert f"{shard.name!r} is missing, although" in refusal(folder)
    (folder / "config.json").unlink()
    assert "config.json is missing" in refusal(folder)


def test_a_shard_that_is_cut_short_is_named(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[-1]
    stored = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(stored[:-1])
    with pytest.raises(CheckpointError, match=rf"{re.escape(shard.name)}: .* so the file is cut short; fetch it again"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "is not valid JSON"),
        ("config.json", b"[]", "expected a JSON object"),
        ("config.json", b"[" * 100_000, "is not valid JSON"),
        ("config.json", b"\xff", "is not valid JSON"),
        ("generation_config.json", b'{"temperature": "hot"}', "temperature is 'hot', expected a number"),
        ("model.safetensors.index.json", b"{}", "has no weight_map"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../x.safetensors"}}', "outside the folder"),
    ],
)
def test_a_broken_description_is_named(saved: Path, tmp_path: Path, file: str, content: bytes, message: str) -> None:
    folder = copied(saved, tmp_path)
    (folder / file).unlink()
    (folder / file).write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unsupported_architecture_is_told_the_nearest_that_is(saved: Path, tmp_path: Path) -> None:
    message = refusal(copied(saved, tmp_path, architectures=["LlamiaForCausalLM"], model_type="llamia"))
    assert "'LlamiaForCausalLM' is not native here (nearest: LlamaForCausalLM), and its model type 'll" in message


def test_an_unsupported_gguf_architecture_lists_those_that_are(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header([key("general.architecture", 8, b"\x05\0\0\0\0\0\0\0rwkv6")], []))
    assert "its architecture 'rwkv6' is not supported, expected one of llama, qwen2" in refusal(path)


def test_quantised_transformers_weights_are_refused_by_name(saved: Path, tmp_path: Path) -> None:
    message = refusal(copied(saved, tmp_path, quantization_config={"quant_method": "bitsandbytes", "bits": 4}))
    assert "quantised by 'bitsandbytes', which is not read; serve the unquantised model with --quantization" in message


def test_weights_that_are_no_floats_are_refused(saved: Path, tmp_path: Path) -> None:
    import torch

    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    save_file({"a": torch.zeros(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    assert "'a' is stored as 'I8', expected one of float32" in refusal(tmp_path)


def test_a_part_of_a_split_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_model("qwen2"), "qwen2", extra={"split.count": 3})
    assert "it is one of 3 parts" in refusal(path)


def test_a_split_gguf_model_is_opened_by_its_folder_or_its_first_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", tiny_model("qwen2"), "qwen2", split=20)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for path in (tmp_path, files[0]):
        found = open_checkpoint(path)
        assert found.files == tuple(files)
        assert found.total_bytes > 0.9 * sum(file.stat().st_size for file in files) - 8192
    assert "of which the first is to be named: m-00001-of-00002.gguf" in refusal(files[1])
    content = files[1].read_bytes()
    files[1].write_bytes(files[0].read_bytes())
    assert "m-00002-of-00002.gguf is no part of the same model; fetch it again" in refusal(tmp_path)
    files[1].write_bytes(content[:-1])
    assert "the file is cut short, fetch it again" in refusal(tmp_path)
    files[1].unlink()
    assert "its part m-00002-of-00002.gguf is missing, of 2; fetch it again" in refusal(tmp_path)


def test_a_mixture_of_experts_of_a_dense_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, tiny_model("qwen2"), "qwen2", extra={"qwen2.expert_count": 8})
    assert "mixture of experts" in refusal(path)


def test_a_gguf_type_that_cannot_be_decoded_is_refused(demo_gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with demo_gguf.open("rb") as file:
        head = bytearray(file.read(1 << 21))
    name = b"blk.0.attn_v.weight"
    at = head.index(name) + len(name) + 4 + 16
    head[at] = 40  # NVFP4, whose blocks are smaller than Q4_1's
    path.write_bytes(head)
    with path.open("r+b") as file:
        file.truncate(demo_gguf.stat().st_size)
    assert "'blk.0.attn_v.weight' is stored as NVFP4, expected one of F32" in refusal(path)


def test_tensors_that_share_bytes_of_a_safetensors_file_are_refused(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[0]
    content = shard.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    name = next(name for name, entry in header.items() if "data_offsets" in entry and entry["data_offsets"][0])
    header[name]["data_offsets"] = [place - 2 for place in header[name]["data_offsets"]]
    raw = json.dumps(header).encode()
    shard.unlink()  # a link
    shard.write_bytes(struct.pack("<Q", len(raw)) + raw + content[8 + length :])
    with pytest.raises(CheckpointError, match=f"'{name}' overlap; fetch it again"):
        open_checkpoint(folder)


def test_every_cut_of_a_safetensors_file_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[0]
    content = shard.read_bytes()
    shard.unlink()
    for length in (0, 7, 8, 20, len(content) // 2, len(content) - 1):
        shard.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="fetch it again"):
            open_checkpoint(folder)
    shard.write_bytes(content)
    open_checkpoint(folder)


def test_opening_a_checkpoint_needs_no_torch(saved: Path, gguf_file: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'transformers', 'numpy', 'safetensors')))\n"
        "from pathlib import Path\n"
        "from stentor.engine.loading.checkpoint import open_checkpoint\n"
        "for path in sys.argv[1:]: print(len(open_checkpoint(Path(path)).config.layers))\n"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", program, str(saved), str(gguf_file)], capture_output=True, text=True, timeout=60
    )
    assert (run.stdout.split(), run.stderr) == (["3", "3"], "")
