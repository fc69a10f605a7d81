"""Mistral's tokenizer file, small."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stentor.tests.engine.tiny_voxtral import PAD, VOCAB

SPECIAL = 40
_FIRST = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT] "
    "[ARGS] [CALL_ID] [THINK] [/THINK] [AUDIO] [BEGIN_AUDIO]"
)
NAMES = {**dict(enumerate(_FIRST.split())), PAD: "[STREAMING_PAD]", 33: "[STREAMING_WORD]"}


def tekken(words: Sequence[bytes], left_pad: int = 32, delay_ms: float = 240) -> dict[str, Any]:
    """Special tokens, then ``words``; text comes three positions after what is heard."""
    return {
        "config": {
            "pattern": r"[^\s]+|\s+",
            "num_vocab_tokens": len(words),
            "default_vocab_size": SPECIAL + len(words),
            "default_num_special_tokens": SPECIAL,
            "version": "v13",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
            for rank, word in enumerate(words)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": NAMES.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
            for rank in range(SPECIAL)
        ],
        "audio": {
            "sampling_rate": 16000,
            "frame_rate": 12.5,
            "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
            "chunk_length_s": None,
            "transcription_format": "streaming",
            "transcription_delay_ms": delay_ms,
            "streaming_look_ahead_ms": 2.5,
            "streaming_look_back_ms": 52.5,
            "streaming_n_left_pad_tokens": left_pad,
        },
    }


def write_tekken(folder: Path, **options: Any) -> None:
    """For ``write_voxtral``'s model: words, spaces, and halves of characters."""
    some = [" a", "b", "ü", " ", "…", " the", "e", "日"]
    words = [*(word.encode() for word in some), b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80"]
    words += [f" w{number}".encode() for number in range(VOCAB - SPECIAL - len(words))]
    (folder / "tekken.json").write_text(json.dumps(tekken(words, **options)))
