"""How numbers are written in an answer."""

from typing import Literal

from .common import InputFields

EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
"""``bytes`` are the numbers themselves, with a header that says where each text's are; ``bytes_only`` without."""
NumberType = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
Endianness = Literal["native", "little", "big"]


class NumberFields(InputFields, kw_only=True):
    """With vLLM's names; the last two are of all formats but ``float``."""

    encoding_format: EncodingFormat = "float"
    embed_dtype: NumberType = "float32"
    endianness: Endianness = "native"


Numbers = list[float | list[float]] | dict[str, float] | str
"""Output for one text: a vector, a vector for each token, weights by token id, or base64 of the numbers."""
