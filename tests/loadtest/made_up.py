"""A model of which there is only a description."""

import json
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def made_up(folder: Path) -> list[str]:
    """Writes the description; returns the options of a benchmark that runs it with random weights."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return ["--model", str(folder), "--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "8MiB"]
