"""``stentor bench grammar-cost`` on what it cannot measure."""

from pathlib import Path

import pytest

from stentor.loadtest.grammar_cost import read_vocabulary
from stentor.loadtest.tool import ToolError


def test_a_file_of_a_model_is_refused_by_name_of_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    for path in (file, tmp_path):
        with pytest.raises(ToolError, match=r"has no tokenizer\.json; give the folder"):
            read_vocabulary(path)
