"""Small tokenizers of every family, and files to load them from."""

from pathlib import Path

import gguf
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from stentor.server.text.tokenizers.pieces import byte_alphabet
from stentor.server.text.tokenizers.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

WORDS = ["▁the", "▁he", "the", "he", "llo", "▁hello", "▁world", "wor", "ld", "▁▁", "▁▁▁▁", "▁1", "日本", "▁日"]


def sentencepiece_vocabulary() -> list[tuple[str, float, int]]:
    """(token, score, type): specials, bytes, words by falling score, then single characters."""
    tokens = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    tokens += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    pairs = ["▁t", "▁h", "th", "ll", "lo", "el", "▁w", "or", "wo", "▁hell", "▁wor", "▁th"]
    tokens += [(word, -float(rank), NORMAL) for rank, word in enumerate(pairs + WORDS)]
    singles = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'日本"
    tokens += [(char, -1000.0 - place, NORMAL) for place, char in enumerate(singles)]
    return [*tokens, ("<|tool|>", 0.0, USER_DEFINED)]


def write_sentencepiece_gguf(path: Path, **flags: object) -> None:
    """A ``.gguf`` file with the vocabulary above and no tensors. ``flags`` are add_bos and the like."""
    writer = gguf.GGUFWriter(path, str(flags.pop("architecture", "llama")))
    tokens, scores, types = zip(*sentencepiece_vocabulary(), strict=True)
    writer.add_context_length(128)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(16)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_tokenizer_model(str(flags.pop("model", "llama")))
    writer.add_tokenizer_pre("default")
    if isinstance(merges := flags.pop("merges", None), list):
        writer.add_token_merges(merges)
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in flags.items():
        if isinstance(value, bool):
            writer.add_bool(f"tokenizer.ggml.{name}", value)
        else:
            writer.add_string(f"tokenizer.{name}", str(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sentencepiece(*, strip: bool = True) -> Tokenizer:
    tokens = sentencepiece_vocabulary()
    backend = Backend(models.BPE({token: id for id, (token, _, _) in enumerate(tokens)}, [], byte_fallback=True))
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return _with_specials(backend, [token for token, _, kind in tokens if kind == CONTROL])


def byte_level(decoder: decoders.Decoder | None = None) -> Tokenizer:
    """All bytes, some words, tokens that end inside a character, and added tokens outside the byte alphabet."""
    spelled = byte_alphabet()
    extra = [
        "Ġthe",
        "he",
        "ll",
        *("".join(spelled[byte] for byte in data) for data in (b"\xf0\x9f", b"\xe6\x97", b"\x98\x80")),
    ]
    backend = Backend(models.BPE({token: id for id, token in enumerate([*spelled.values(), *extra])}, []))
    backend.decoder = decoder or decoders.ByteLevel()
    backend.add_tokens([AddedToken("<\uff5ctool▁call\uff5c>"), AddedToken("é"), AddedToken("a b")])
    return _with_specials(backend, ["<s>", "</s>", "<|é|>"])


def wordpiece() -> Tokenizer:
    words = ["[UNK]", "hello", "world", "##ing", "##ly", "n", "'", "t", ",", ".", "n't", "do", "日", "\ufffd", "##s"]
    backend = Backend(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return _with_specials(backend, ["[CLS]", "[SEP]"])


def metaspace() -> Tokenizer:
    words = [
        (word, -float(rank)) for rank, word in enumerate(["<unk>", "▁", "▁the", "▁he", "llo", "a", "b", "▁▁", "日"])
    ]
    backend = Backend(models.Unigram(words, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return _with_specials(backend, ["<s>", "</s>"])


def undecoded() -> Tokenizer:
    """No decoder: tokens are joined with spaces."""
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    return _with_specials(backend, ["<s>", "</s>"])


def _with_specials(backend: Backend, specials: list[str]) -> Tokenizer:
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in specials])
    return Tokenizer(backend, {"bos_token": specials[0], "eos_token": specials[1]})


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that is there."""
    id = tokenizer.backend.token_to_id(token)
    assert id is not None, token
    return id


FAMILIES = {
    "byte_level": byte_level,
    "byte_level_with_another_step": lambda: byte_level(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteLevel()])
    ),
    "sentencepiece": sentencepiece,
    "sentencepiece_without_strip": lambda: sentencepiece(strip=False),
    "wordpiece": wordpiece,
    "metaspace": metaspace,
    "undecoded": undecoded,
}
