from typing import Any

import pytest
import transformers

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.registry import ARCHITECTURES, read_config
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.model_config.speech.whisper import WhisperConfig


@pytest.mark.parametrize(
    ("config", "spec"), [(transformers.LlamaConfig(), ModelSpec), (transformers.WhisperConfig(), WhisperConfig)]
)
def test_an_architecture_is_found_by_its_name_or_by_its_model_type(config: Any, spec: type) -> None:
    described = config.to_dict()
    name = next(name for name, each in ARCHITECTURES.items() if each.model_type == config.model_type)
    by_type = read_config({**described, "architectures": None}, {})
    assert isinstance(by_type, spec)
    assert read_config({**described, "architectures": ["Unheard", name]}, {}) == by_type


def test_one_that_is_not_served_is_told_the_nearest_that_is() -> None:
    for config in ({"architectures": ["Qwen9ForCausalLM"]}, {"model_type": "qwen9"}):
        with pytest.raises(ConfigError, match=r"is not native here \(nearest: [Qq]wen.*, and its model type"):
            read_config(config, {})
