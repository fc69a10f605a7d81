"""What a streaming transcription model begins with: as the makers' own code has it, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from stentor.engine.loading.errors import CheckpointError
from stentor.server.asr.stream_forms import is_streaming_model
from stentor.server.asr.stream_vocabulary import stream_vocabulary_of
from stentor.server.text.tokenizers.pieces import byte_alphabet
from stentor.tests.server.asr.tekken import NAMES, SPECIAL, tekken

CONFIG: dict[str, Any] = {
    "architectures": ["VoxtralRealtimeForConditionalGeneration"],
    "model_type": "voxtral_realtime",
    "default_num_delay_tokens": 3,
    "text_config": {
        "vocab_size": 400,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
    },
    "audio_config": {},
}
WORDS = [bytes([byte]) for byte in range(256)] + [b" the", b" w\xc3", b"ed"]


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "config.json", CONFIG)
    write(tmp_path, "tekken.json", tekken(WORDS))
    return tmp_path


def test_the_prompt_and_the_silence_are_those_of_the_makers(folder: Path) -> None:
    ours = stream_vocabulary_of(folder)
    instruct: Any = MistralTokenizer.from_file(str(folder / "tekken.json")).instruct_tokenizer
    encoder = instruct.audio_encoder
    assert ours.prompt == instruct.start() + encoder.encode_streaming_tokens()
    for samples in (1, 1279, 1280, 1281, 50_000):
        padded = encoder.pad(np.ones(samples, dtype=np.float32), 16_000)
        expected = np.concatenate([np.zeros(len(ours.before) // 2), np.ones(samples)])
        expected = np.concatenate([expected, np.zeros(len(ours.after(2 * samples)) // 2)])
        assert np.array_equal(padded, expected)


def test_tokens_stand_for_the_bytes_that_they_stand_for_there(folder: Path) -> None:
    ours = stream_vocabulary_of(folder)
    theirs: Any = MistralTokenizer.from_file(str(folder / "tekken.json")).instruct_tokenizer.tokenizer
    assert (ours.bos, ours.eos) == (theirs.bos_id, theirs.eos_id)
    for id in range(theirs.n_words):
        expected = b"" if id < SPECIAL else theirs.id_to_byte_piece(id, SpecialTokenPolicy.IGNORE)
        assert ours.token_bytes(id) == expected
    assert ours.token_bytes(theirs.n_words) == ours.token_bytes(-1) == b""


def test_a_tokenizer_of_the_other_library_will_do(folder: Path) -> None:
    (folder / "tekken.json").unlink()
    backend = Backend(BPE({spelled: byte for byte, spelled in byte_alphabet().items()}, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(name, special=True) for name in NAMES.values()])
    backend.save(str(folder / "tokenizer.json"))
    ours = stream_vocabulary_of(folder)
    ids = [backend.token_to_id(name) or 0 for name in ("<s>", "</s>", "[STREAMING_PAD]", "[STREAMING_WORD]")]
    assert [ours.bos, ours.eos, ours.pad] == ids[:3]
    assert ours.prompt == [ids[0]] + [ids[2]] * 35
    assert (ours.token_bytes(0xC3), ours.token_bytes(ids[3])) == (b"\xc3", b"")


def test_models_of_the_kind_are_told_by_their_config(folder: Path) -> None:
    assert is_streaming_model(folder)
    write(folder, "config.json", {**CONFIG, "architectures": None})
    assert is_streaming_model(folder)
    write(folder, "config.json", {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"})
    assert not is_streaming_model(folder)
    (folder / "config.json").unlink()
    assert not is_streaming_model(folder)


def no_tokenizer(folder: Path) -> None:
    (folder / "tekken.json").unlink()


def broken(folder: Path) -> None:
    (folder / "tekken.json").write_text('{"vocab": [{"token_bytes": 3}]}')


def not_base64(folder: Path) -> None:
    file = tekken(WORDS)
    file["vocab"][5]["token_bytes"] = "=é"
    write(folder, "tekken.json", file)


def no_pad(folder: Path) -> None:
    file = tekken(WORDS)
    file["special_tokens"] = [token for token in file["special_tokens"] if "PAD" not in token["token_str"]]
    write(folder, "tekken.json", file)


def other_delay(folder: Path) -> None:
    write(folder, "tekken.json", tekken(WORDS, delay_ms=480))


def endless_pad(folder: Path) -> None:
    write(folder, "tekken.json", tekken(WORDS, left_pad=128))


def no_audio(folder: Path) -> None:
    write(folder, "config.json", {**CONFIG, "audio_config": None})


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (no_tokenizer, r"There is no tokenizer in .*tekken\.json or a tokenizer\.json"),
        (broken, r"Cannot read .*tekken\.json"),
        (not_base64, r"Cannot read .*tekken\.json"),
        (no_pad, r"has no token \[STREAMING_PAD\]"),
        (other_delay, r"6 positions after its audio, and config.json 3"),
        (endless_pad, r"takes 128 positions"),
        (no_audio, r"config\.json: text_config or audio_config is missing"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(folder: Path, spoil: Callable[[Path], None], expected: str) -> None:
    spoil(folder)
    with pytest.raises(CheckpointError, match=expected) as raised:
        stream_vocabulary_of(folder)
    assert isinstance(raised.value, CheckpointError)
    assert "\n" not in str(raised.value)
