"""Tokenizers from folders, and what may be wrong with them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stentor.server.text.errors import TokenizerError
from stentor.server.text.tokenizers.loading import check_same_tokens, load_tokenizer
from stentor.tests.fakes import byte_tokenizer
from stentor.tests.server.text.vocabularies import write_sentencepiece_gguf


def folder(path: Path, config: dict[str, Any] | None = None, **files: str) -> Path:
    byte_tokenizer().backend.save(str(path / "tokenizer.json"))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        file = path / name.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return path


def test_a_folder_gives_its_special_tokens_and_template(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "chat_template": "T"}
    tokenizer = load_tokenizer(folder(tmp_path, config))
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<s>", 256)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("</s>", 257)
    assert tokenizer.chat_template == "T"
    assert tokenizer.encode("a") == [97]


def test_the_special_tokens_map_fills_what_the_config_leaves_out(tmp_path: Path) -> None:
    tokens = json.dumps({"bos_token": "</s>", "eos_token": "</s>"})
    tokenizer = load_tokenizer(folder(tmp_path, {"bos_token": "<s>"}, special_tokens_map_DOT_json=tokens))
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


def test_the_config_decides_what_stands_around_a_text(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    assert load_tokenizer(folder(tmp_path, config)).encode("a") == [256, 97]
    config["add_eos_token"] = True
    assert load_tokenizer(folder(tmp_path, config)).encode("a") == [256, 97, 257]
    assert load_tokenizer(folder(tmp_path, config)).encode("<s>a", add_special_tokens=False) == [256, 97]


def test_tokens_that_only_the_config_names_are_added_where_their_ids_fit(tmp_path: Path) -> None:
    entries = {"258": {"content": "<think>", "special": False}, "300": {"content": "<gap>", "special": True}}
    tokenizer = load_tokenizer(folder(tmp_path, {"added_tokens_decoder": entries}))
    assert tokenizer.encode("<think>") == [258]
    assert tokenizer.vocab_size == 259
    assert tokenizer.decode([258]) == "<think>"


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    backend = byte_tokenizer().backend
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("abcd") == [97, 98, 99, 100]


def test_template_files_come_before_the_config(tmp_path: Path) -> None:
    folder(tmp_path, {"chat_template": "old"}, chat_template_DOT_jinja="new")
    assert load_tokenizer(tmp_path).chat_template == "new"
    folder(tmp_path, additional_chat_templates__tool_use_DOT_jinja="tools")
    assert load_tokenizer(tmp_path).chat_template == {"default": "new", "tool_use": "tools"}
    (tmp_path / "mine.jinja").write_text("mine")
    assert load_tokenizer(tmp_path, chat_template_file=tmp_path / "mine.jinja").chat_template == "mine"


def test_named_templates_of_the_config_and_the_json_file_are_read(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    assert load_tokenizer(folder(tmp_path, {"chat_template": named})).chat_template == {"default": "a", "rag": "b"}
    text = json.dumps({"chat_template": "c"})
    assert load_tokenizer(folder(tmp_path, {}, chat_template_DOT_json=text)).chat_template == "c"


def test_another_place_can_be_named(tmp_path: Path) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    model.mkdir()
    other.mkdir()
    write_sentencepiece_gguf(model / "model.gguf")
    folder(other)
    assert load_tokenizer(model).shape.kind == "sentencepiece"
    assert load_tokenizer(model, override=other).shape.kind == "byte_level"
    assert load_tokenizer(other, override=model / "model.gguf").shape.kind == "sentencepiece"


def test_a_draft_model_with_other_tokens_is_told_in_one_line(tmp_path: Path) -> None:
    model, same, other = (tmp_path / name for name in ("model", "same", "other"))
    for each in (model, same, other):
        each.mkdir()
    tokenizer = load_tokenizer(folder(model))
    check_same_tokens(tokenizer, folder(same))
    check_same_tokens(tokenizer, tmp_path)
    described = json.loads((same / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    first, second = (next(text for text, token in vocabulary.items() if token == number) for number in (7, 8))
    vocabulary[first], vocabulary[second] = 8, 7
    (other / "tokenizer.json").write_text(json.dumps(described))
    with pytest.raises(TokenizerError, match=r"--speculative-config: token \d is .* the same tokenizer"):
        check_same_tokens(tokenizer, other)


def test_a_missing_tokenizer_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"holds no tokenizer\.json.*--tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="no such file or folder"):
        load_tokenizer(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "text"),
    [("tokenizer.json", "{"), ("tokenizer.json", '{"model": 1}'), ("tokenizer_config.json", "["), ("x.gguf", "GGUF")],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    if not name.endswith(".gguf"):
        folder(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(TokenizerError, match=name) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_slow_tokenizer_is_converted_by_transformers(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "##ing"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("helloing", add_special_tokens=False)) == "helloing"


def test_a_server_starts_with_neither_torch_nor_transformers_nor_numpy_nor_httpx(demo_gguf: Path) -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'transformers', 'numpy', 'httpx'])\n"
        "from pathlib import Path\n"
        "import stentor.server.app.lifecycle, stentor.server.text.output.generation\n"
        "from stentor.server.text.tokenizers.loading import load_tokenizer\n"
        "print(load_tokenizer(Path(sys.argv[1])).encode('Hello'))\n"
    )
    out = subprocess.run(
        [sys.executable, "-P", "-c", program, str(demo_gguf)], capture_output=True, text=True, timeout=60, check=False
    )
    assert out.stdout == "[19556]\n", out.stderr
