"""A vocabulary of bytes, a few words, and markers."""

from stentor.engine.core.grammar.vocabulary import TokenBytes

EOS = 256
THINK, UNTHINK = 257, 258
WORDS = [b"hello", b'{"', b'":', b" the", b"\xf0\x9f", b"true", b"</think"]
TOKENS = [*(bytes([value]) for value in range(256)), b"<eos>", b"<think>", b"</think>", *WORDS, b""]
SIZE = len(TOKENS)
VOCABULARY = TokenBytes(TOKENS, [EOS, THINK, UNTHINK], [EOS])


def text_of(tokens: list[int]) -> str:
    return b"".join(b"" if token == EOS else TOKENS[token] for token in tokens).decode("utf-8")
