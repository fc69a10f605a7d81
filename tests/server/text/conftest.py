"""What several tests of this folder need and is slow to make."""

from pathlib import Path
from typing import Any

import pytest

from stentor.tests.server.text.reference import transformers_tokenizer


@pytest.fixture(scope="session")
def demo_reference(demo_gguf: Path) -> Any:
    """The demo model's tokenizer as transformers reads it; whoever changes it puts it back."""
    return transformers_tokenizer(demo_gguf)
