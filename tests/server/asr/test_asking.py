"""How chat models are asked for transcripts."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stentor.engine.loading.checkpoint import Checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.generation_config import GenerationConfig
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.towers.media_spec import MediaSpec
from stentor.server.app.media import asking_of
from stentor.server.asr.asking import ASKING


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("Nemotron3_5TranscribeForConditionalGeneration", "says_before"),
        ("GlmAsrForConditionalGeneration", "says"),
        ("Qwen3ASRForConditionalGeneration", ""),
    ],
)
def test_a_file_may_say_otherwise_how_a_model_is_asked(tmp_path: Path, architecture: str, words: str) -> None:
    sizes = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 1}
    config = {"architectures": ["LlamaForCausalLM"], **sizes, "num_hidden_layers": 1, "max_position_embeddings": 8}
    spec = replace(model_spec_from_hf(config), architecture=architecture)
    checkpoint = Checkpoint("dummy", tmp_path, (), spec, "bfloat16", GenerationConfig())
    file, usual = tmp_path / "processor_config.json", ASKING[architecture]
    changed: dict[str, Any] = {words: "Write it down."} if words else {}
    for said in (None, "Write it down."):
        file.write_text(json.dumps({"default_transcription_prompt": said}))
        found = asking_of(MediaSpec({"audio": 1}), checkpoint)
        assert found == (replace(usual, **changed) if said else usual)
    file.write_text('{"default_transcription_prompt": 5}')
    with pytest.raises(CheckpointError, match="default_transcription_prompt is '5', expected a text"):
        asking_of(MediaSpec({"audio": 1}), checkpoint)
