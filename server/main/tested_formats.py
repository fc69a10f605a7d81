"""Tests of the formats of weights of each architecture, for ``docs/reference/models.md``."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class FormatCheck(NamedTuple):
    format: str
    file: str
    """Test that compares logits with those of the stored values."""
    names: tuple[str, ...]
    """Names of its checkpoints."""


_CHECKPOINTS: Final = "tests/engine/quantization/test_checkpoints.py"
_EXPERTS: Final = "tests/engine/quantization/test_experts.py"
FORMATS: Final[Mapping[str, tuple[FormatCheck, ...]]] = {
    "LlamaForCausalLM": (
        FormatCheck("FP8", _CHECKPOINTS, ("fp8", "compressed-fp8")),
        FormatCheck("GPTQ", _CHECKPOINTS, ("gptq", "gptq-v2", "gptq-act-order", "gptq8")),
        FormatCheck("AWQ", _CHECKPOINTS, ("awq",)),
        FormatCheck("int8", _CHECKPOINTS, ("compressed-int8",)),
        FormatCheck("ternary", _CHECKPOINTS, ("bitnet", "bitnet-divided", "bitnet-online")),
        FormatCheck("MXFP4", _CHECKPOINTS, ("compressed-mxfp4",)),
        FormatCheck("NVFP4", _CHECKPOINTS, ("compressed-nvfp4", "modelopt-nvfp4")),
    ),
    "Qwen3MoeForCausalLM": (
        FormatCheck("FP8", _EXPERTS, ("fp8",)),
        FormatCheck("GPTQ", _EXPERTS, ("gptq",)),
        FormatCheck("AWQ", _EXPERTS, ("awq",)),
        FormatCheck("int8", _EXPERTS, ("int8", "gptq8")),
        FormatCheck("NVFP4", _EXPERTS, ("nvfp4",)),
    ),
    "Mistral4ForCausalLM": (FormatCheck("FP8", _EXPERTS, ("mistral4",)),),
    "Inkling2ForCausalLM": (FormatCheck("MXFP8", _EXPERTS, ("inkling2",)),),
    "GptOssForCausalLM": (FormatCheck("MXFP4", _EXPERTS, ("gpt-oss",)),),
}
"""By architecture: formats of weights other than unquantised ones and GGUF's."""
