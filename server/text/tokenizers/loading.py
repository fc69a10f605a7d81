"""Finds and loads the tokenizer that belongs to a model."""

import json
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from stentor.engine.loading.gguf.mmproj_names import is_mmproj

from ..errors import TokenizerError
from .gguf_tokenizer import load_gguf_tokenizer, set_ends
from .tekken import TEKKEN, Tekken
from .tiktoken import load_tiktoken, tiktoken_file
from .tokenizer import ChatTemplates, Tokenizer

_BEGUN: Final = ("emu3", "molmo2")
"""Model types whose processor in transformers begins each prompt with the tokenizer's BOS, or its EOS if it has none,
whether or not the tokenizer does."""
_SPECIAL_NAMES: Final = (*("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"),)
_COMPARED: Final = 500
"""Compared tokens of two tokenizers that must be equal."""
_SLOW_FILES: Final = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")


def has_tokenizer(path: Path) -> bool:
    """Whether a model's file or folder has a tokenizer of any kind."""
    return (
        path.is_file()
        or any((path / name).is_file() for name in ("tokenizer.json", TEKKEN, *_SLOW_FILES))
        or tiktoken_file(path) is not None
        or any(path.glob("*.gguf"))
    )


def load_tokenizer(path: Path, *, override: Path | None = None, chat_template_file: Path | None = None) -> Tokenizer:
    """The tokenizer of the model at ``path``: a Hugging Face folder, a ``.gguf`` file or a folder with one.

    ``override`` is another source of the same kinds; ``chat_template_file`` replaces the model's template. Mistral's
    ``tekken.json`` and files of words by rank (:mod:`.tiktoken`) are read directly. For a folder that only has the
    files of a slow tokenizer (``tokenizer.model``), transformers is imported to convert it. Raises
    :class:`TokenizerError`.
    """
    tokenizer = _load(path if override is None else override)
    if chat_template_file is None:
        return tokenizer
    return Tokenizer(tokenizer.backend, tokenizer.special_tokens, _read_text(chat_template_file))


def check_same_tokens(tokenizer: Tokenizer, path: Path) -> None:
    """Raises :class:`TokenizerError` where the model at ``path``, which drafts for one of this ``tokenizer``, means
    other tokens by their numbers: one in some hundred is compared, and all of the last. A tokenizer that is not there,
    as beside a head, says nothing against it."""
    if not has_tokenizer(path):
        return
    mine, theirs = tokenizer.backend, _load(path).backend
    size = min(mine.get_vocab_size(), theirs.get_vocab_size())
    for token in (*range(0, size, 1 + size // _COMPARED), *range(max(0, size - _COMPARED), size)):
        texts = mine.id_to_token(token), theirs.id_to_token(token)
        if None not in texts and texts[0] != texts[1]:
            raise TokenizerError(
                f"--speculative-config: token {token} is {texts[0]!r} to the model and {texts[1]!r} to the draft model "
                f"{path}; expected one with the same tokenizer."
            )


def _load(path: Path) -> Tokenizer:
    if path.is_file():
        if path.name == "tokenizer.json":
            return _load_folder(path.parent)
        return load_gguf_tokenizer(path)
    if not path.is_dir():
        raise TokenizerError(f"There is no tokenizer at {path}: no such file or folder.")
    if (path / "tokenizer.json").is_file():
        return _load_folder(path)
    if (path / TEKKEN).is_file():
        return Tekken(path / TEKKEN).tokenizer()
    if (ranked := tiktoken_file(path)) is not None:
        return _finish(load_tiktoken(ranked, _named_tokens(path)), path)
    if any((path / name).is_file() for name in _SLOW_FILES):
        return _convert_slow(path)
    # the first part of a model in several files is the one with the metadata
    files = sorted(file for file in path.glob("*.gguf") if not is_mmproj(file.name))
    if files:
        return load_gguf_tokenizer(files[0])
    raise TokenizerError(
        f"There is no tokenizer in {path}: it holds no tokenizer.json, tekken.json, tiktoken.model, tokenizer.model or "
        ".gguf file. "
        "Name a folder that does (--tokenizer)."
    )


def _load_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"Cannot read {file}: {error}. Fetch the model again.") from error
    return _finish(backend, folder)


def _convert_slow(folder: Path) -> Tokenizer:
    try:
        # heavy, and needed for old checkpoints only
        from transformers import AutoTokenizer

        backend: Backend = AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer
    except Exception as error:
        raise TokenizerError(
            f"Cannot convert the slow tokenizer in {folder}: {' '.join(str(error).split())[:300]}. "
            "Name a folder with a tokenizer.json (--tokenizer)."
        ) from error
    return _finish(backend, folder)


def _finish(backend: Backend, folder: Path) -> Tokenizer:
    """Applies the files beside ``tokenizer.json``."""
    config = _read_json(folder / "tokenizer_config.json")
    special = {**_special_tokens(_read_json(folder / "special_tokens_map.json")), **_special_tokens(config)}
    _add_tokens(backend, config.get("added_tokens_decoder"))
    known = {name: token for name, token in special.items() if backend.token_to_id(token) is not None}
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in _unmarked(backend, known)]
    )
    if _read_json(folder / "config.json").get("model_type") in _BEGUN:
        known["bos_token"] = special["bos_token"] = known.get("bos_token") or known.get("eos_token", "")
        config = {**config, "add_bos_token": True}
    if isinstance(config.get("add_bos_token"), bool) or isinstance(config.get("add_eos_token"), bool):
        set_ends(
            backend,
            known.get("bos_token") if config.get("add_bos_token") else None,
            known.get("eos_token") if config.get("add_eos_token") else None,
        )
    return Tokenizer(backend, special, _chat_templates(folder, config))


def _named_tokens(folder: Path) -> dict[int, str]:
    """Texts by id of the tokens that ``tokenizer_config.json`` adds."""
    decoder = _read_json(folder / "tokenizer_config.json").get("added_tokens_decoder")
    found = decoder.items() if isinstance(decoder, dict) else ()
    return {
        int(id): entry["content"]
        for id, entry in found
        if str(id).isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str)
    }


def _special_tokens(values: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_NAMES:
        value = values.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _unmarked(backend: Backend, special: dict[str, str]) -> list[str]:
    """Named special tokens that the backend takes for ordinary ones."""
    marked = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    return [token for token in dict.fromkeys(special.values()) if token not in marked]


def _add_tokens(backend: Backend, decoder: object) -> None:
    """Tokens that ``tokenizer_config.json`` names and ``tokenizer.json`` lacks, where their ids fit."""
    if not isinstance(decoder, dict):
        return
    present = backend.get_added_tokens_decoder()
    for id in sorted(int(id) for id in decoder if str(id).isdigit()):
        entry = decoder[str(id)]
        if id in present or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            continue
        here = backend.token_to_id(entry["content"])
        if here == id or (here is None and id == backend.get_vocab_size(with_added_tokens=True)):
            flags = {
                name: bool(entry[name])
                for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
                if name in entry
            }
            backend.add_tokens([AddedToken(entry["content"], **flags)])


def _chat_templates(folder: Path, config: dict[str, Any]) -> ChatTemplates:
    """Template files come before the JSON that older models carry."""
    named: dict[str, str] = {}
    old = _read_json(folder / "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(old, str):
        named["default"] = old
    elif isinstance(old, list):
        for entry in old:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                named[str(entry.get("name"))] = entry["template"]
    main = folder / "chat_template.jinja"
    if main.is_file():
        named["default"] = _read_text(main)
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        named[file.stem] = _read_text(file)
    if not named:
        return None
    return named["default"] if named.keys() == {"default"} else named


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(_read_text(file))
    except ValueError as error:
        raise TokenizerError(f"Cannot read {file}: {error}. Fetch the model again.") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"Cannot read {file}: expected a JSON object. Fetch the model again.")
    return value


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(f"Cannot read {file}: {error}.") from error


def number_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer in which ``12 7 400`` means those token ids; any other word is token 0."""
    backend = Backend(WordLevel({str(id): id for id in range(vocab_size)}, unk_token="0"))
    backend.pre_tokenizer = WhitespaceSplit()
    return Tokenizer(backend, {})
