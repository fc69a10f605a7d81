"""A model of which there is only a description: small, quick to start, and it talks for as long as it is asked to."""

import json
from pathlib import Path

VOCABULARY = 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 60_000,
}


def describe(folder: Path) -> list[str]:
    """Writes the description; gives the arguments that serve it."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return [str(folder), "--load-format", "dummy", "--served-model-name", "made-up", "--kv-cache-memory", "64MiB"]
