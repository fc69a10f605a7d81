"""How byte-level vocabularies cut text into words, by the name that a GGUF file gives (``tokenizer.ggml.pre``).

The names are llama.cpp's; the patterns are those of the models' own ``tokenizer.json`` files, in
Oniguruma's syntax.
"""

from typing import Final

import msgspec
from tokenizers import Regex, pre_tokenizers

_CONTRACTION: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL: Final = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN2: Final = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN35: Final = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _TAIL
_SEED_CODER: Final = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _TAIL
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_TEKKEN: Final = _CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
_GPT4O: Final = _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _TAIL,
)
_YOUTU: Final = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL,
)
_JAIS2: Final = (
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    # runs of spaces in powers of two
    + "|".join(rf"\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
    + r"|\s{1}"
)
_EXAONE_MOE: Final = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_NOT_HAN_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_NOT_HAN_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_KIMI: Final = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN_UPPER}*{_NOT_HAN_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN_UPPER}+{_NOT_HAN_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
)
_LING: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM: Final = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")


class PreTokenization(msgspec.Struct, frozen=True):
    """Patterns that split one after another, then the family's other settings."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """Whether a word that is a token is used directly, without merges."""
    nfc: bool = False
    adds_bos: bool = False
    """Whether a BOS is added if the file does not say."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_FAMILIES: Final = (
    (
        PreTokenization((_GPT2,)),
        "default gpt-2 phi-2 mpt olmo jais exaone4 trillion granite-docling gigachat "
        "a.x-4.0 mellum modern-bert roberta-bpe",
    ),
    (
        PreTokenization((r"\p{N}", _GPT2)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    ),
    (
        PreTokenization((_LLAMA3,), ignore_merges=True, adds_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    (PreTokenization((_LLAMA3,)), "dbrx smaug-bpe chatglm-bpe glm4 glm5"),
    (PreTokenization((_QWEN2,), nfc=True), "qwen2 deepseek-r1-qwen kormo f2llmv2"),
    (PreTokenization((_QWEN2,)), "stablelm2 megrez hunyuan solar-open grok-2"),
    (PreTokenization((_QWEN35,), nfc=True), "qwen35"),
    (PreTokenization((_SEED_CODER,)), "seed-coder"),
    (PreTokenization((_TEKKEN,), ignore_merges=True, adds_bos=True), "tekken"),
    (PreTokenization((_GPT4O,)), "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (PreTokenization(_DEEPSEEK3), "deepseek-v3 hunyuan-dense joyai-llm"),
    (PreTokenization(_DEEPSEEK_CODER), "deepseek-coder"),
    (PreTokenization(_YOUTU, ignore_merges=True), "youtu"),
    (PreTokenization((_EXAONE_MOE,)), "exaone-moe"),
    (PreTokenization((_KIMI,)), "kimi-k2"),
    (PreTokenization((_LING,)), "bailingmoe bailingmoe2"),
    (PreTokenization((_JAIS2,)), "jais-2"),
    (PreTokenization((_BLOOM,)), "bloom gpt3-finnish"),
)
PRE_TOKENIZERS: Final = {name: family for family, names in _FAMILIES for name in names.split()}
"""``tokenizer.ggml.pre`` → how its text is cut."""
