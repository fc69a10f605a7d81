"""Models of which there is only a description: small, quick to start, and talking for as long as they are asked to."""

import json
from pathlib import Path
from typing import Final

from stentor.engine.loading.download.hub import DEFAULT_MODEL

ECHO: Final = "stentor.tests.echo_server"
"""The module of a server whose workers compute nothing: it is ready in half the time, and a token takes it 20 ms."""
EXACT: Final = ("--dtype", "float32", "--batch-invariant")
"""A stream's tokens are the same whatever shares its batch, also when it is computed again."""
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

MIXTURE: Final = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "head_dim": 32,
    "num_key_value_heads": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
"""Its two layers are mixtures."""


def describe(folder: Path) -> list[str]:
    """Writes the description; gives the arguments that serve it."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return [str(folder), "--load-format", "dummy", "--served-model-name", "made-up", "--kv-cache-memory", "64MiB"]


def describe_talker(folder: Path, **shape: object) -> list[str]:
    """The same for a model with the demo model's tokenizer and chat template; its words mean nothing. ``shape`` is of
    its configuration."""
    config = {**CONFIG, "vocab_size": 49_152, "eos_token_id": 2, **shape}
    (folder / "config.json").write_text(json.dumps(config))
    own = ["--load-format", "dummy", "--tokenizer", DEFAULT_MODEL, "--kv-cache-memory", "64MiB"]
    return [str(folder), *own]
