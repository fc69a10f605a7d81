"""Tokens that end a turn, where a GGUF file names none."""

import pytest

from stentor.engine.loading.generation_config import generation_config_from_gguf

CONTROL, NORMAL = 3, 1


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["a", "<|end|>", "<|user|>"], (1,)),
        (["<|return|>", "<|end|>", "<|call|>", "<|start|>"], (0, 2)),
        (["<|im_start|>", "<|im_end|>"], (1,)),
        (["<|header_start|>", "<|eot|>"], (1,)),
        (["]~b]", "[e~["], (1,)),
    ],
)
def test_what_closes_a_turn_is_told_by_the_vocabulary(tokens: list[str], ends: tuple[int, ...]) -> None:
    metadata = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [CONTROL] * len(tokens)}
    assert generation_config_from_gguf(metadata).eos_token_ids == ends


def test_text_that_looks_like_the_end_of_a_turn_ends_none() -> None:
    metadata = {"tokenizer.ggml.tokens": ["<|im_end|>"], "tokenizer.ggml.token_type": [NORMAL]}
    assert generation_config_from_gguf(metadata).eos_token_ids == ()
