# ruff: noqa: E501, RUF001
"""Texts that tokenizers trip over."""

_PLAIN = [
    "", " ", "  ", "\n", "\t", "\r\n", "a", "Hello, world!", "The quick brown fox jumps over the lazy dog.",
    "don't can't it's we'll I'm they've he'd DON'T IT'S", "CamelCaseAndSNAKE_case and-kebab-case",
    "word" * 40, "é", "naïve café résumé Zürich Ångström", "e\u0301 a\u0308 decomposed", "ﬁ ﬂ ½ ² Ⅷ ①",
]  # fmt: skip
_DIGITS = [
    "1", "12", "123", "1234", "12345678901234567890", "3.14159", "1,000,000", "2024-02-29T12:34:56Z", "0x1F", "1e-10",
    "  1", "   12", "a1b2c3", "٣٤٥", "१२३", "phone +49 (0) 30 123456", "10\n20\n30", "\n\n7", "\t8", "½3",
]  # fmt: skip
_CODE = [
    "def f(x: int) -> int:\n    return x ** 2  # square\n", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    "SELECT * FROM t WHERE id = 42 AND name LIKE '%x%';", "<div class=\"a\">&nbsp;</div>", '{"a": [1, 2, {"b": null}]}',
    "#!/bin/bash\nset -euo pipefail\necho \"$1\" | sed 's/a/b/g'\n", "if x:\n\tpass\nelse:\n\t\tpass\n", "a\\nb\\\\c",
    "\\frac{1}{2} \\sum_{i=0}^{n} x_i", "https://example.org/path?q=1&r=2#frag", "user@example.org", "C:\\Users\\x",
    "```python\nprint('hi')\n```", "|a|b|\n|-|-|\n|1|2|", "x" + " " * 17 + "= 1;", "/* ---- */ // ====",
]  # fmt: skip
_SCRIPTS = [
    "日本語のテキスト", "中文测试，包括标点。", "한국어 문장입니다.", "مرحبا بالعالم", "שלום עולם", "Привет, мир!", "Γειά σου Κόσμε",
    "नमस्ते दुनिया", "สวัสดีชาวโลก", "Xin chào thế giới", "ሰላም ልዑል", "გამარჯობა", "Þetta er íslenska", "İstanbul'da ığdır",
    "混合 mixed テキスト text 텍스트", "كتاب 123 book", "\u202bright to left\u202c", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𐍈 𒀀", "ᏣᎳᎩ",
]  # fmt: skip
_EMOJI = [
    "😀", "👨‍👩‍👧‍👦", "🇩🇪🇯🇵", "👍🏽", "a😀b", "☃️❄️", "🏳️‍🌈 flag", "\u200b\u200c\u200d", "\ufeffbom", "\ufffd", "\x00\x01\x7f", "™®©", "“curly” ‘quotes’ — dash…",
]  # fmt: skip
_SPACES = [
    *(" " * size for size in (3, 4, 7, 8, 15, 16, 31)), *("\n" * size for size in (2, 3, 5)), "a  b", "a   b", "  a", "a  ",
    " \n ", "\n \n", "a\n\n\nb", "\t\ta", " \t \t ", "a\u00a0b", "a\u3000b", "a\u2009b", "\u2028\u2029", "a \r\n b", "end \n", "  \n  x",
    "\v\f", " .", " ,  ;", "a .b", "!!!  ???",
]  # fmt: skip
_SPECIAL = [
    "<|im_start|>", "<|im_start|>user\nhi<|im_end|>\n", "a<|im_end|>b", "<|im_start|><|im_start|>", "<|endoftext|> after",
    "<|im_start", "|im_start|>", "<file_sep>x<filename>", "<s>", "</s>", "hello<s>hello", "<unk>", "<0x41>", "<|tool|>x <|tool|>", "▁ underline ▁▁",
    " <|im_end|> ", "hello</s> hello", "hello world the hello", "日本 日本", "the  hello",
]  # fmt: skip
_SINGLE = [*_PLAIN, *_DIGITS, *_CODE, *_SCRIPTS, *_EMOJI, *_SPACES, *_SPECIAL]

TEXTS = [
    *_SINGLE,
    *(f"{left} {right}" for left, right in zip(_SCRIPTS, _CODE, strict=False)),
    *(f"{left}{right}" for left, right in zip(_EMOJI, _DIGITS, strict=False)),
    *(f"{left}\n{right}" for left, right in zip(_SPECIAL, _SCRIPTS, strict=False)),
    *(f"{left}{right}{left}" for left, right in zip(_SPACES, _PLAIN, strict=False)),
]
