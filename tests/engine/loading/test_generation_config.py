"""What a GGUF file says of sampling, and how its vocabulary says where a turn ends, when its metadata does not."""

import pytest

from stentor.engine.loading.generation_config import generation_config_from_gguf, generation_config_from_hf

PLAIN, CONTROL = 1, 3


@pytest.mark.parametrize(
    ("texts", "ends"),
    [
        (["a", "<|im_end|>", "<|end|>"], (1, 2)),
        (["<|return|>", "<|end|>", "a", "<|call|>"], (0, 3)),
        (["<|return|>", "<|end|>"], (1,)),
    ],
    ids=["chatml", "gpt-oss", "one-of-gpt-oss"],
)
def test_a_turn_of_gpt_oss_does_not_end_with_a_message(texts: list[str], ends: tuple[int, ...]) -> None:
    metadata = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": [CONTROL] * len(texts)}
    assert generation_config_from_gguf(metadata).eos_token_ids == ends


def test_a_token_that_users_may_write_ends_no_turn() -> None:
    metadata = {"tokenizer.ggml.tokens": ["<|return|>", "<|call|>"], "tokenizer.ggml.token_type": [PLAIN, CONTROL]}
    assert generation_config_from_gguf(metadata).eos_token_ids == (1,)


def test_a_vocabulary_of_no_texts_names_no_end() -> None:
    metadata = {"tokenizer.ggml.tokens": [["a"], ["b"]], "tokenizer.ggml.token_type": [CONTROL, CONTROL]}
    assert generation_config_from_gguf(metadata).eos_token_ids == ()


def test_what_a_file_says_of_sampling_is_taken() -> None:
    said = generation_config_from_gguf({"general.sampling.temp": 0.5, "general.sampling.top_p": 0.9})
    assert (said.temperature, said.top_p, said.top_k) == (0.5, 0.9, None)


def test_fields_of_transformers_that_have_no_effect_are_named() -> None:
    neutral: dict[str, object] = {"no_repeat_ngram_size": 0, "typical_p": 1.0, "num_beams": 1}
    neutral |= {"suppress_tokens": None, "bad_words_ids": []}
    assert generation_config_from_hf({}, {**neutral, "temperature": 0.5, "do_sample": False}).unused == ()
    said = {**neutral, "suppress_tokens": [7, 8], "no_repeat_ngram_size": 3, "typical_p": 0.9}
    assert generation_config_from_hf({}, said).unused == ("suppress_tokens", "no_repeat_ngram_size", "typical_p")
