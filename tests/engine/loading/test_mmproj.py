"""Projector files beside GGUF models: which is taken, what is refused, and which ways to store weights are read."""

from pathlib import Path
from typing import Any, Final

import gguf
import pytest
import torch
from safetensors.torch import load_file

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import Checkpoint, open_checkpoint
from stentor.engine.loading.download.hub import resolve_model
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.gguf.dequantize import dequantize
from stentor.engine.loading.gguf.mmproj_names import by_preference, is_mmproj
from stentor.engine.loading.gguf.types import GGMLType
from stentor.engine.loading.weights import tower_weights
from stentor.engine.model_config.towers.vision_spec import VisionSpec
from stentor.engine.models.towers.payload import Payload
from stentor.engine.models.towers.vision_tower import VisionTower
from stentor.tests.parity.seeing import MAKERS
from stentor.tests.support.mmproj_files import write_mmproj, write_pair, write_text
from stentor.tests.support.vision_models import FAMILIES, SIDE, token

BESIDE: Final = "mmproj-m.gguf"


class Pair:
    """A model as two files, made once."""

    def __init__(self, family: str, folder: Path) -> None:
        self.family, self.folder = family, folder
        self.model = FAMILIES[family](folder)

    def write(self, target: Path, **metadata: Any) -> Path:
        """The text file; what ``metadata`` says otherwise is below ``clip.``, ``__`` for its full stops."""
        target.mkdir(exist_ok=True)
        file = write_pair(self.folder, self.model, self.family, target)
        said = {f"clip.{key.replace('__', '.')}": value for key, value in metadata.items()}
        write_mmproj(target / BESIDE, self.model, self.family, self.folder, metadata=said)
        return file


@pytest.fixture(scope="module")
def idefics(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair("idefics3", tmp_path_factory.mktemp("idefics3"))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair("gemma3", tmp_path_factory.mktemp("gemma3"))


def test_a_folder_of_a_model_and_its_projector_is_that_model(idefics: Pair, tmp_path: Path) -> None:
    file = idefics.write(tmp_path)
    assert resolve_model(str(tmp_path)) == file
    found = open_checkpoint(tmp_path)
    assert found.files == (file,)
    assert found.tower is not None
    assert found.tower.files == (tmp_path / BESIDE,)
    assert found.decoder.text_part
    assert found.notes == ()
    assert found.described is not None
    assert found.described["image_token_id"] == token("<image>")


def test_a_projector_is_named_or_lies_beside_the_model(idefics: Pair, tmp_path: Path) -> None:
    file = idefics.write(tmp_path / "text")
    projector = (file.parent / BESIDE).rename(tmp_path / "elsewhere.gguf")
    assert open_checkpoint(file).tower is None
    assert not open_checkpoint(file).decoder.text_part
    named = open_checkpoint(file, mmproj=str(projector))
    assert named.tower is not None
    assert named.tower.files == (projector,)


def test_of_several_projectors_that_of_16_bits_comes_first() -> None:
    names = ["a/mmproj-m-Q8_0.gguf", "a/mmproj-m-f32.gguf", "a/M.mmproj-f16.gguf", "a/mmproj-m-BF16.gguf"]
    assert by_preference(names) == [names[2], names[3], names[0], names[1]]
    assert all(map(is_mmproj, names))
    assert not any(map(is_mmproj, ("mmproj/model.gguf", "mmproj-m.safetensors", "m.gguf")))


def test_one_that_lies_beside_a_model_and_does_not_fit_is_passed_over(
    idefics: Pair, gemma: Pair, tmp_path: Path
) -> None:
    file = idefics.write(tmp_path)
    gemma.write(tmp_path / "other")
    (tmp_path / "other" / BESIDE).rename(tmp_path / "mmproj-a-f16.gguf")
    found = open_checkpoint(file)
    assert found.tower is not None
    assert found.tower.files == (tmp_path / BESIDE,)
    (note,) = found.notes
    assert "its projector (gemma3) is of a text model of gemma3, and the text model is llama" in note


def refused(file: Path) -> str:
    """Why its projector is not taken where it is named."""
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(file, mmproj=str(file.parent / BESIDE))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"has_vision_encoder": None}, "its encoder takes nothing, expected pictures or sounds"),
        (
            {"has_vision_encoder": False, "has_audio_encoder": True},
            "its encoder takes sounds, and its projector (idefics3) does not",
        ),
        (
            {"has_audio_encoder": True},
            "it has an encoder of sounds beside that of pictures (idefics3), expected one of them",
        ),
        (
            {"projector_type": "ldpv2"},
            "clip.projector_type is 'ldpv2', which is not native here, expected one of idefics3",
        ),
        ({"projector_type": "ldpv2"}, "gemma4v+gemma4a; without it, text alone is served"),
        ({"projector_type": "glma"}, "gemma4v+gemma4a; its model takes media here as safetensors files"),
        (
            {"projector_type": None, "vision__projector_type": "gemma3nv", "has_audio_encoder": True}
            | {"audio__projector_type": "gemma3na"},
            "clip.projector_type is 'gemma3nv+gemma3na', which is not native here",
        ),
        ({"projector_type": "qwen2.5o"}, "its encoder takes pictures alone, and its projector (qwen2.5o) does not"),
        ({"vision__projection_dim": 48}, "it makes embeddings of 48 columns, and those of the text model have 64"),
        ({"vision__block_count": 0}, "clip.vision.block_count is '0', expected a whole number from 1 to 4096"),
        ({"vision__attention__head_count": 3}, "3 heads do not divide 64 dimensions"),
        (
            {"projector_type": "gemma3"},
            "its projector (gemma3) is of a text model of gemma3, and the text model is llama",
        ),
        ({"projector_type": "internvl"}, "the text model's vocabulary has no token <IMG_CONTEXT>"),
    ],
)
def test_what_no_tower_can_be_made_of_is_refused_in_one_line(
    said: dict[str, Any], message: str, idefics: Pair, tmp_path: Path
) -> None:
    file = idefics.write(tmp_path, **said)
    if "vocabulary" in message:
        write_text(file, idefics.model, "llama", idefics.folder, {token("<IMG_CONTEXT>"): "<other>"})
    assert message in refused(file)
    assert open_checkpoint(file).tower is None


def test_what_is_no_projector_is_refused(idefics: Pair, tmp_path: Path) -> None:
    file = idefics.write(tmp_path)
    with pytest.raises(CheckpointError, match=r"it is no projector: general.architecture is not 'clip'"):
        open_checkpoint(file, mmproj=str(file))
    with pytest.raises(CheckpointError, match=r"--mmproj .*: a projector file goes with a .gguf file, and .* is none"):
        open_checkpoint(idefics.folder, mmproj=str(tmp_path / BESIDE))


def test_where_a_vocabulary_ends_before_the_placeholder_another_token_takes_its_place(
    gemma: Pair, tmp_path: Path
) -> None:
    file = gemma.write(tmp_path)
    own = token("<image_soft_token>")
    write_text(file, gemma.model, "gemma3", gemma.folder, {own: "<other>", 300: "<unused0>"})
    described = open_checkpoint(file).described
    assert described is not None
    assert described["image_token_id"] == 300


def tower_of(checkpoint: Checkpoint, *, packed: bool = False, as_stored: bool = True) -> VisionTower:
    stored = checkpoint.tower
    assert stored is not None
    assert isinstance(stored.projector, VisionSpec)
    quantized, dtype = stored.quantized if as_stored else None, torch.bfloat16 if packed else torch.float32
    context = LayerContext(torch.device("cpu"), dtype, False, packed=packed, quantized=quantized)
    tower = VisionTower(stored.projector, context)
    tower.load(tower_weights(checkpoint, tower.weights.raw))
    return tower


def embeddings(tower: VisionTower, *, batched: bool = True) -> torch.Tensor:
    pixels = torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    pixels = pixels.unsqueeze(0) if batched else pixels
    return tower.encode(Payload("image", {"pixel_values": pixels})).embeddings


@pytest.mark.parametrize(("kind", "most"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 2e-2)])
def test_weights_of_fewer_bits_are_read(kind: str, most: float, idefics: Pair, tmp_path: Path) -> None:
    whole = embeddings(tower_of(open_checkpoint(idefics.write(tmp_path))))
    stored = gguf.GGMLQuantizationType[kind]
    write_mmproj(tmp_path / BESIDE, idefics.model, "idefics3", idefics.folder, kind=stored)
    found = embeddings(tower_of(open_checkpoint(tmp_path)))
    off = (found - whole).square().mean().sqrt() / whole.square().mean().sqrt()
    assert 0 < off < most


@pytest.mark.parametrize("family", ["pixtral", "internvl", "gemma3"])
def test_blocks_are_multiplied_as_they_are_stored(family: str, tmp_path: Path) -> None:
    pair = Pair(family, tmp_path)
    pair.write(tmp_path / "gguf")
    stored = gguf.GGMLQuantizationType.Q8_0
    write_mmproj(tmp_path / "gguf" / BESIDE, pair.model, family, tmp_path, kind=stored)
    checkpoint = open_checkpoint(tmp_path / "gguf")
    tower = tower_of(checkpoint, packed=True)
    names = {name.rpartition(".")[0] for name in tower.weights.raw}
    assert any(name.endswith(".q_proj") for name in names)
    assert not any(name.endswith((".projection_layer", "mm_input_projection_weight")) for name in names)
    expanded, found = (embeddings(each, batched=False) for each in (tower_of(checkpoint, as_stored=False), tower))
    off = (found - expanded).square().mean().sqrt() / expanded.square().mean().sqrt()
    assert off < 5e-2  # inputs are rounded to eight bits, and what attends to bfloat16


def test_rows_that_turn_by_column_and_by_row_are_put_beside_each_other_as_blocks_too(tmp_path: Path) -> None:
    model = MAKERS["kimi_k25"](tmp_path)
    file = write_pair(tmp_path, model, "kimi_k25")
    stored = gguf.GGMLQuantizationType.Q8_0
    write_mmproj(file.parent / BESIDE, model, "kimi_k25", tmp_path, kind=stored)
    checkpoint, name = open_checkpoint(file), "encoder.blocks.0.attn.qkv_proj.weight"
    whole, blocks = (dict(tower_weights(checkpoint, raw))[name] for raw in (frozenset(), frozenset({name})))
    assert blocks.dtype == torch.uint8
    assert torch.equal(dequantize(blocks, GGMLType.Q8_0).view(whole.shape), whole)
    published = load_file(tmp_path / "model.safetensors")["vision_tower.encoder.blocks.0.wqkv.weight"]
    assert torch.allclose(whole, published, atol=5e-3)


def test_networks_that_old_converters_named_the_other_way_round_are_read(idefics: Pair, tmp_path: Path) -> None:
    whole = embeddings(tower_of(open_checkpoint(idefics.write(tmp_path))))
    data = (tmp_path / BESIDE).read_bytes()
    for one, other in ((b"ffn_up.", b"ffn_XX."), (b"ffn_down.", b"ffn_up."), (b"ffn_XX.", b"ffn_down.")):
        data = renamed(data, one, other)
    (tmp_path / BESIDE).write_bytes(data)
    assert torch.equal(embeddings(tower_of(open_checkpoint(tmp_path))), whole)


def renamed(data: bytes, one: bytes, other: bytes) -> bytes:
    """A file whose tensors' names hold ``other`` in place of ``one``; its data stay where they are aligned."""
    reader = len(data)
    at, out = 0, bytearray()
    while (found := data.find(one, at)) >= 0:
        name = data.rfind(b"v.blk.", 0, found)
        length = int.from_bytes(data[name - 8 : name], "little") + len(other) - len(one)
        out += data[at : name - 8] + length.to_bytes(8, "little") + data[name:found] + other
        at = found + len(one)
    assert reader == len(data)
    return bytes(out + data[at:])


def test_a_tensor_that_a_tower_has_no_place_for_is_named(idefics: Pair, tmp_path: Path) -> None:
    file = idefics.write(tmp_path)
    data = (tmp_path / BESIDE).read_bytes()
    (tmp_path / BESIDE).write_bytes(data.replace(b"v.blk.0.ln1.bias", b"v.blk.0.zzz.bias"))
    with pytest.raises(Exception, match=r"v\.blk\.0\.zzz\.bias"):
        tower_of(open_checkpoint(file))


def test_a_projector_of_sounds_is_read_with_its_weights_in_16_bits_too(tmp_path: Path) -> None:
    model = MAKERS["voxtral"](tmp_path)
    file = write_pair(tmp_path, model, "voxtral")
    found = open_checkpoint(file)
    assert found.described is not None
    assert found.described["audio_token_id"] == token("<video>")
    assert found.decoder.text_part
    whole = dict(tower_weights(found))
    expected = {name: tensor for name, tensor in model.state_dict().items() if name in whole}
    assert whole.keys() == expected.keys() >= {"model.audio_tower.conv1.bias", "model.audio_tower.layers.1.fc2.weight"}
    assert all(torch.equal(whole[name], expected[name]) for name in expected)
    write_mmproj(file.parent / BESIDE, model, "voxtral", tmp_path, kind=gguf.GGMLQuantizationType.F16)
    halves = dict(tower_weights(open_checkpoint(file)))
    assert all(torch.allclose(halves[name].float(), whole[name], rtol=1e-3, atol=1e-4) for name in whole)
    assert halves["model.audio_tower.conv1.weight"].dtype == torch.float16
