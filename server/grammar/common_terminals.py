"""What llguidance has under the names of Lark's ``common`` module, as patterns."""

from types import MappingProxyType
from typing import Final

_DIGITS: Final = r"[0-9]+"
_EXPONENT: Final = r"[eE][+\-]?[0-9]+"
_POINTED: Final = rf"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:{_EXPONENT})?"
_FLOAT: Final = rf"(?:{_POINTED}|{_DIGITS}{_EXPONENT})"
_NUMBER: Final = rf"(?:{_DIGITS}|{_FLOAT})"
_SIGN: Final = r"[+\-]?"

COMMON: Final = MappingProxyType(
    {
        "DIGIT": r"[0-9]",
        "HEXDIGIT": r"[0-9a-fA-F]",
        "INT": _DIGITS,
        "SIGNED_INT": _SIGN + _DIGITS,
        "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
        "_EXP": _EXPONENT,
        "FLOAT": _FLOAT,
        "SIGNED_FLOAT": _SIGN + _FLOAT,
        "NUMBER": _NUMBER,
        "SIGNED_NUMBER": _SIGN + _NUMBER,
        "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
        "LCASE_LETTER": r"[a-z]",
        "UCASE_LETTER": r"[A-Z]",
        "LETTER": r"[A-Za-z]",
        "WORD": r"[A-Za-z]+",
        "CNAME": r"[_A-Za-z][_A-Za-z0-9]*",
        "WS_INLINE": r"[ \t]+",
        "WS": r"[ \t\f\r\n]+",
        "CR": r"\r",
        "LF": r"\n",
        "NEWLINE": r"(?:\r?\n)+",
        "SH_COMMENT": r"#[^\n]*",
        "CPP_COMMENT": r"//[^\n]*",
        "C_COMMENT": r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/",
        "SQL_COMMENT": r"--[^\n]*",
    }
)
