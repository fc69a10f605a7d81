import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.ct2_file import read_ct2
from stentor.engine.loading.ct2_whisper import hf_names
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.weights import iterate_weights
from stentor.tests.engine.loading.tiny_ct2 import model_bin, text, variable, whisper_variables
from stentor.tests.engine.plain_shapes import plain_shapes
from stentor.tests.examples import examples

VARIABLES = {
    "a/weight": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a/weight_scale": torch.ones(2),
    "b": torch.tensor(-3, dtype=torch.int16),
    "c": torch.tensor([1, -2], dtype=torch.int8),
    "d": torch.ones(1, 2, 1, dtype=torch.bfloat16),
    "e": torch.ones(2, dtype=torch.float16),
    "f": torch.ones(3, dtype=torch.int32),
}
SOUND = model_bin(VARIABLES, {"g": "a/weight"})
HEAD = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<I", 3)


def write(folder: Path, content: bytes) -> Path:
    file = folder / "model.bin"
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_every_version_and_type_is_read(version: int, tmp_path: Path) -> None:
    variables = {
        name: tensor
        for name, tensor in VARIABLES.items()
        if version >= 4 or tensor.dtype in (torch.float32, torch.int16, torch.int8)
    }
    file = write(tmp_path, model_bin(variables, {"g": "a/weight"}, version=version))
    found = read_ct2(file)
    assert (found.version, found.kind) == (version, "WhisperSpec" if version > 1 else "TransformerBase")
    assert found.aliases == ({"g": "a/weight"} if version >= 3 else {})
    assert list(found.variables) == list(variables)
    content = file.read_bytes()
    for name, tensor in variables.items():
        stored = found.variables[name]
        assert (stored.shape, stored.dtype) == (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        raw = content[stored.offset : stored.offset + stored.nbytes]
        assert torch.equal(torch.frombuffer(bytearray(raw), dtype=tensor.dtype).view(tensor.shape), tensor)
    assert found.scalar("b") == -3
    with pytest.raises(CheckpointError, match="expected a/weight to be one whole number"):
        found.scalar("a/weight")


BROKEN = {
    "empty": (b"", "4 bytes are expected at byte 0, but it has only 0"),
    "pickled": (b"PK\x03\x04" + bytes(60), "its binary version is 67324752, and 1 to 6 can be read"),
    "newer": (struct.pack("<I", 7) + SOUND[4:], "its binary version is 7, and 1 to 6 can be read"),
    "many": (HEAD + struct.pack("<I", 1 << 30), "claims 1073741824 variables"),
    "unended": (struct.pack("<IH", 6, 3) + b"abc", "the kind of model does not end with a zero byte"),
    "no utf-8": (struct.pack("<IH", 6, 3) + b"\xff\xfe\0", "the kind of model is not valid UTF-8"),
    "type": (HEAD + struct.pack("<I", 1) + text("a") + struct.pack("<BBI", 0, 9, 4) + bytes(4), "unknown type 9"),
    "size": (HEAD + struct.pack("<I", 1) + text("a") + struct.pack("<BIBI", 1, 5, 0, 4) + bytes(4), "does not fit"),
    "dims": (HEAD + struct.pack("<I", 1) + text("a") + struct.pack("<B", 9), "has 9 dimensions, expected at most 4"),
    "huge": (
        HEAD + struct.pack("<I", 1) + text("a") + struct.pack("<BIBI", 1, 1 << 29, 0, 1 << 31),
        "2147483648 bytes are expected at byte",
    ),
    "twice": (
        HEAD + struct.pack("<I", 2) + 2 * variable("a", torch.ones(1)) + bytes(4),
        "'a' stands in it twice",
    ),
    "alias": (model_bin(VARIABLES, {"g": "nobody"}), "the alias 'g' of 'nobody' leads nowhere"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_line(name: str, tmp_path: Path) -> None:
    content, message = BROKEN[name]
    with pytest.raises(CheckpointError) as found:
        read_ct2(write(tmp_path, content))
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_every_cut_is_refused(tmp_path: Path) -> None:
    for length in range(len(SOUND)):
        with pytest.raises(CheckpointError):
            read_ct2(write(tmp_path, SOUND[:length]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flipped")


@given(data=st.data())
@settings(max_examples=examples(50, 3000), deadline=None)
def test_flipped_bytes_are_one_line_or_no_matter(data: st.DataObject, folder: Path) -> None:
    content = bytearray(SOUND)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    said = ""
    try:
        read_ct2(write(folder, bytes(content)))
    except CheckpointError as error:
        said = str(error)
    assert "\n" not in said


def test_names_of_ctranslate2_become_those_of_transformers() -> None:
    assert hf_names("encoder/layer_12/self_attention/linear_0/weight") == (
        "model.encoder.layers.12.self_attn.q_proj.weight",
        "model.encoder.layers.12.self_attn.k_proj.weight",
        "model.encoder.layers.12.self_attn.v_proj.weight",
    )
    assert hf_names("decoder/layer_0/attention/layer_norm/gamma") == (
        "model.decoder.layers.0.encoder_attn_layer_norm.weight",
    )
    assert hf_names("decoder/position_encodings/encodings") == ("model.decoder.embed_positions.weight",)
    assert hf_names("decoder/projection/weight") == ()
    assert hf_names("decoder/embeddings/weight_scale") == ()
    assert hf_names("decoder/layer_x/ffn/linear_0/weight") is None
    assert hf_names("vocoder/conv1/weight") is None
    assert hf_names("encoder/conv3/weight") is None


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    from stentor.tests.parity.whispers import tiny  # late: transformers is heavy

    found: dict[str, torch.Tensor] = tiny().state_dict()
    return found


def broken(state: dict[str, torch.Tensor], folder: Path, **changes: torch.Tensor | None) -> str:
    """What is said of a Whisper with other variables (``__`` for ``/``; None leaves one out)."""
    variables = whisper_variables(state, (3, 4))
    for name, tensor in changes.items():
        if tensor is None:
            del variables[name.replace("__", "/")]
        else:
            variables[name.replace("__", "/")] = tensor
    write(folder, model_bin(variables))
    with pytest.raises(CheckpointError) as found:
        for _ in iterate_weights(open_checkpoint(folder), torch.float32):
            pass
    return str(found.value)


def test_what_no_whisper_has_is_named(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    assert "it holds 'encoder/conv9/weight', which no Whisper has" in broken(
        state, tmp_path, encoder__conv9__weight=torch.ones(2)
    )
    assert "'encoder/conv1/weight' is int8, and has no float32 scales" in broken(
        state, tmp_path, encoder__conv1__weight=torch.ones(48, 80, 3, dtype=torch.int8)
    )
    assert "has 50 rows, expected a multiple of 3" in broken(
        state, tmp_path, encoder__layer_0__self_attention__linear_0__weight=torch.ones(50, 48)
    )
    assert "expected encoder/num_heads to be one whole number" in broken(state, tmp_path, encoder__num_heads=None)
    assert "decoder/embeddings/weight has the shape None" in broken(state, tmp_path, decoder__embeddings__weight=None)


def test_another_model_and_a_broken_vocabulary_are_named(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    write(tmp_path, model_bin(whisper_variables(state, (3, 4)), kind="TransformerSpec"))
    with pytest.raises(CheckpointError, match="is a 'TransformerSpec', expected 'WhisperSpec'"):
        open_checkpoint(tmp_path)
    write(tmp_path, model_bin(whisper_variables(state, (3, 4))))
    assert open_checkpoint(tmp_path).encoder_decoder.eos_token_ids == ()
    (tmp_path / "vocabulary.txt").write_text("a\nb\n<|endoftext|>\n")
    assert open_checkpoint(tmp_path).encoder_decoder.eos_token_ids == (2,)
    (tmp_path / "vocabulary.json").write_text("[")
    with pytest.raises(CheckpointError, match=r"vocabulary.json: it is no vocabulary"):
        open_checkpoint(tmp_path)


def test_it_is_found_below_a_folder_and_is_no_language_model(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    below = tmp_path / "package" / "model"
    below.mkdir(parents=True)
    write(below, model_bin(whisper_variables(state, (3, 4))))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.folder == below
    with pytest.raises(CheckpointError, match=r"is a speech recognition model .*: give it as --transcription-model"):
        _ = checkpoint.decoder
    dummy = open_checkpoint(tmp_path, "dummy")
    names = {name for name, _ in iterate_weights(dummy, torch.float32, shapes=plain_shapes(dummy.encoder_decoder))}
    stored = {name for name, _ in iterate_weights(checkpoint, torch.float32)}
    assert names == {name for name in stored if not name.endswith("k_proj.bias")}
