from typing import Any

import pytest
import transformers

from stentor.engine.model_config.encoders.hf import encoder_config_from_hf
from stentor.engine.model_config.encoders.pooling import PoolingConfig
from stentor.engine.model_config.encoders.sentence import SentenceModules
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.worker.families.pooling import suited_limits

MINILM: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def model(config: Any) -> PoolingConfig:
    described = {**config.to_dict(), "architectures": ["Qwen3ForCausalLM"]}
    read = model_spec_from_hf if config.model_type == "qwen3" else encoder_config_from_hf
    return PoolingConfig(read(described), SentenceModules(("mean",)), config.hidden_size)


@pytest.mark.parametrize(
    ("config", "mixed"),
    [
        (transformers.BertConfig(**MINILM), 227),
        (transformers.BertConfig(**LARGE), 32),
        (transformers.BertConfig(**{**MINILM, "hidden_size": 96, "intermediate_size": 96}), 512),
        (transformers.Qwen3Config(**LARGE, num_key_value_heads=8), 32),
    ],
)
def test_beside_others_on_a_cpu_a_step_is_as_long_as_the_model_takes(config: Any, mixed: int) -> None:
    limits = suited_limits(model(config), "cpu")
    assert limits.max_mixed_prefill_tokens == mixed
    assert limits.max_prefill_chunk == 512, "alone it is as long as pays"
    assert suited_limits(model(config), "cuda").max_mixed_prefill_tokens == 8192
