"""The values of ``format`` that are held; others are annotations, as JSON Schema has it, and dropped."""

from collections.abc import Mapping
from typing import Final, NamedTuple

_YEAR: Final = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR: Final = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE: Final = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME: Final = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:0[0-9]|1[0-9]|2[0-3]):[0-5][0-9])"
)
_COUNT: Final = "[0-9]{1,9}"
_CLOCK: Final = f"(?:T(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S))"
_DAYS: Final = f"(?:{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"
_LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST: Final = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_ATOM: Final = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,30}"


class Format(NamedTuple):
    pattern: str | None
    """Of all texts of this format; None where llguidance's own is as good."""


FORMATS: Final[Mapping[str, Format]] = {
    "date-time": Format(f"^{_DATE}T{_TIME}$"),
    "date": Format(f"^{_DATE}$"),
    "time": Format(f"^{_TIME}$"),
    "duration": Format(f"^P(?:{_DAYS}{_CLOCK}?|{_CLOCK}|{_COUNT}W)$"),
    "email": Format(rf"^{_ATOM}(?:\.{_ATOM})?@{_HOST}$"),
    "hostname": Format(f"^{_HOST}$"),
    "ipv4": Format(None),
    "ipv6": Format(None),
    "uuid": Format(None),
    "uri": Format(None),
}
