"""The demo model's vocabulary, as the engine has it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from stentor.engine.core.grammar.matcher import Compiler
from stentor.engine.core.grammar.vocabulary import TokenBytes
from stentor.server.text.tokenizers.grammar_tokens import special_tokens_of, token_bytes_of
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.server.text.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(demo_gguf: Path) -> Tokenizer:
    return load_tokenizer(demo_gguf)


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> TokenBytes:
    assert tokenizer.eos_token_id is not None
    return token_bytes_of(tokenizer, (tokenizer.eos_token_id,))


@pytest.fixture(scope="session")
def special(tokenizer: Tokenizer) -> Mapping[str, int]:
    return special_tokens_of(tokenizer)


@pytest.fixture(scope="session")
def compiler(vocabulary: TokenBytes) -> Compiler:
    return Compiler(vocabulary)
