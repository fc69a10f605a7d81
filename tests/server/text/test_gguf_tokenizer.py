"""Token ids from GGUF metadata, against transformers' own conversion."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import pre_tokenizers

from stentor.server.text.errors import TokenizerError
from stentor.server.text.tokenizers.loading import load_tokenizer
from stentor.server.text.tokenizers.pretokenizers import PRE_TOKENIZERS
from stentor.tests.server.text.reference import transformers_tokenizer
from stentor.tests.server.text.texts import TEXTS
from stentor.tests.server.text.vocabularies import write_sentencepiece_gguf
from stentor.tests.support.counting import lines_executed


def test_there_are_many_texts_of_many_kinds() -> None:
    assert len(set(TEXTS)) >= 200
    assert any("<|im_start|>" in text for text in TEXTS)


def test_the_demo_models_ids_are_those_of_transformers(demo_gguf: Path, demo_reference: Any) -> None:
    ours, theirs = load_tokenizer(demo_gguf), demo_reference
    cutter = theirs.backend_tokenizer.pre_tokenizer
    different = [text for text in TEXTS if ours.encode(text) != theirs.encode(text)]
    # transformers cuts by GPT-2's pattern here; the model's tokenizer.json, like llama.cpp, cuts digits apart before
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    theirs.backend_tokenizer.pre_tokenizer = cutter
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]
    assert all(any(char.isnumeric() for char in text) for text in different), "digits alone may be cut differently"
    assert len(different) < len(TEXTS) // 10


def test_the_demo_models_special_tokens_are_known(demo_gguf: Path) -> None:
    tokenizer = load_tokenizer(demo_gguf)
    assert tokenizer.vocab_size == 49_152
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<|im_start|>", 1)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (2, 0)
    assert tokenizer.special_ids == frozenset(range(17))
    assert isinstance(tokenizer.chat_template, str)
    assert tokenizer.token_to_text(tokenizer.encode(" the")[0]) == " the"


def test_the_demo_models_tokenizer_loads_fast(demo_gguf: Path) -> None:
    assert lines_executed(lambda: load_tokenizer(demo_gguf)) < 32 * 49_152, "lines for each of its tokens"


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"add_space_prefix": False},
        {"add_bos_token": False, "add_eos_token": True},
        {"architecture": "phi3"},
        {"architecture": "gemma2", "add_space_prefix": False},
    ],
)
def test_a_sentencepiece_vocabulary_gives_the_ids_of_transformers(tmp_path: Path, flags: dict[str, Any]) -> None:
    file = tmp_path / "model.gguf"
    write_sentencepiece_gguf(file, **flags)
    ours = load_tokenizer(file)
    theirs = transformers_tokenizer(file)
    if not flags.get("add_space_prefix", True):
        # transformers reads the flag but does not hand it on
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "never", split=False)
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text
    assert (ours.encode("hello")[0] == 1) == flags.get("add_bos_token", True)
    assert (ours.encode("hello")[-1] == 2) == flags.get("add_eos_token", False)


def test_a_gemma_4_vocabulary_brings_its_merges(tmp_path: Path) -> None:
    write_sentencepiece_gguf(tmp_path / "recovered.gguf", architecture="gemma2", add_space_prefix=False)
    recovered = load_tokenizer(tmp_path / "recovered.gguf")
    merges = json.loads(recovered.backend.to_str())["model"]["merges"]
    assert merges
    stored = [" ".join(merge) for merge in merges]
    write_sentencepiece_gguf(
        tmp_path / "stored.gguf", model="gemma4", architecture="gemma4", merges=stored, add_space_prefix=False
    )
    found = load_tokenizer(tmp_path / "stored.gguf")
    for text in TEXTS:
        assert found.encode(text) == recovered.encode(text), text
    assert found.encode("hello")[0] == 1


def test_a_text_that_brings_its_own_bos_gets_no_second_one(tmp_path: Path) -> None:
    write_sentencepiece_gguf(tmp_path / "model.gguf")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("<s>hello").count(1) == 1
    assert tokenizer.encode_batch(["<s>hello", "hello"])[0].count(1) == 1
    assert tokenizer.encode("<s><s>hello").count(1) == 2  # what the text itself says twice stays twice


def test_user_defined_tokens_are_text_and_control_tokens_are_not(tmp_path: Path) -> None:
    write_sentencepiece_gguf(tmp_path / "model.gguf")
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("hello<|tool|>hello</s>")
    assert tokenizer.decode(ids) == "hello<|tool|>hello"
    assert tokenizer.token_bytes(13 + 3) == b"\r"


def test_named_chat_templates_are_read(tmp_path: Path) -> None:
    write_sentencepiece_gguf(tmp_path / "model.gguf", chat_template="plain", **{"chat_template.tool_use": "tools"})
    assert load_tokenizer(tmp_path).chat_template == {"default": "plain", "tool_use": "tools"}


def byte_level_gguf(file: Path, pre: str, **values: Any) -> None:
    from stentor.server.text.tokenizers.pieces import byte_alphabet

    writer = gguf.GGUFWriter(file, "llama")
    tokens = [*byte_alphabet().values(), "12", "123", "Ġ1", "<\uff5cbegin\uff5c>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(values.get("tokens", tokens))
    writer.add_token_types(values.get("types", [1] * 259 + [3]))
    writer.add_token_merges(values.get("merges", ["Ġ 1", "1 2", "12 3"]))
    writer.add_bos_token_id(259)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", [" 1", "2", "3", "4"]),
        ("smollm", [" ", "1", "2", "3", "4"]),
        ("llama-bpe", [" ", "123", "4"]),
        ("qwen2", [" ", "1", "2", "3", "4"]),
    ],
)
def test_the_family_decides_how_digits_are_cut(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    byte_level_gguf(tmp_path / "model.gguf", pre)
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode(" 1234", add_special_tokens=False)
    assert [tokenizer.token_to_text(id) for id in ids] == pieces
    assert tokenizer.encode("<\uff5cbegin\uff5c>1", add_special_tokens=False)[0] == 259
    assert (tokenizer.encode("1")[0] == 259) == (pre == "llama-bpe")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("kimi-k2", "Hi 中文abc It's 12345", ["Hi", " ", "中文", "abc", " It's", " ", "123", "45"]),
        ("youtu", "Hi 中文abc 12", ["Hi", " ", "中文", "abc", " ", "1", "2"]),
        ("jais-2", "a" + 7 * " " + "b", ["a", "    ", "  ", " b"]),
        ("bailingmoe2", "it's 中a 12\n\n!?", ["it", "'s", " 中a", " ", "1", "2", "\n\n", "!?"]),
        ("exaone-moe", "to be or 12!", ["to be or", " ", "1", "2", "!"]),
    ],
)
def test_a_family_cuts_text_at_scripts_and_spaces_of_its_own(name: str, text: str, words: list[str]) -> None:
    from stentor.server.text.tokenizers.pieces import byte_level_bytes

    cut = PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    assert [byte_level_bytes(word).decode() for word, _ in cut] == words


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_family_cuts_text_without_losing_any(name: str) -> None:
    from stentor.server.text.tokenizers.pieces import byte_level_bytes

    cutter = PRE_TOKENIZERS[name].build()
    for text in TEXTS:
        words = [word for word, _ in cutter.pre_tokenize_str(text)]
        assert b"".join(map(byte_level_bytes, words)).decode() == text


def test_an_unknown_family_is_refused_by_name(tmp_path: Path) -> None:
    byte_level_gguf(tmp_path / "model.gguf", "martian")
    with pytest.raises(TokenizerError, match=r"'martian'.*--tokenizer"):
        load_tokenizer(tmp_path)


def test_merges_that_name_no_token_are_refused(tmp_path: Path) -> None:
    byte_level_gguf(tmp_path / "model.gguf", "gpt-2", merges=["1 999"])
    with pytest.raises(TokenizerError, match="Cannot take the tokenizer from"):
        load_tokenizer(tmp_path)


def test_types_that_do_not_fit_the_tokens_are_refused(tmp_path: Path) -> None:
    byte_level_gguf(tmp_path / "model.gguf", "gpt-2", types=[1, 1])
    with pytest.raises(TokenizerError, match="token types"):
        load_tokenizer(tmp_path)


def test_tokens_that_share_a_text_keep_their_ids(tmp_path: Path) -> None:
    from stentor.server.text.tokenizers.pieces import byte_alphabet

    byte_level_gguf(
        tmp_path / "model.gguf", "gpt-2", tokens=[*byte_alphabet().values(), "12", "12", "", "<x>"], merges=["1 2"]
    )
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 260
    assert tokenizer.encode("12") == [256]
