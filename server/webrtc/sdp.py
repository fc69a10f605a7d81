"""Session descriptions (RFC 8866) of browsers' offers, and the answer.

Only the parts that a call uses are read: others are ignored, or refused.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

MAX_CHARS: Final = 32 << 10
"""Characters of an offer. A browser's has about 3,000."""
MAX_LINES: Final = 1024
MAX_MESSAGE_BYTES: Final = 256 << 10
"""Bytes of one received message on the data channel."""
_DEFAULT_MESSAGE_BYTES: Final = 64 << 10
"""Bytes of a message to a client without a limit of its own."""
_SCTP_PORT: Final = 5000
_OPUS: Final = re.compile(r"(\d{1,3}) opus/48000/2\s*", re.IGNORECASE)
_FINGERPRINT: Final = re.compile(r"(sha-256|sha-384|sha-512) ([0-9a-f:]{95,191})\s*", re.IGNORECASE)
_UFRAG: Final = re.compile(r"[A-Za-z0-9+/]{4,256}")
_PASSWORD: Final = re.compile(r"[A-Za-z0-9+/]{22,256}")
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,64}")
_DIRECTIONS: Final = ("sendrecv", "sendonly", "recvonly", "inactive")


class SdpError(ValueError):
    """The fault of an offer, in words that follow its name."""


class Fingerprint(NamedTuple):
    algorithm: str
    value: str


class Offer(msgspec.Struct, frozen=True):
    """One audio section and one of data, in one bundle."""

    mids: tuple[str, str]
    """Of the sections, in order."""
    audio_first: bool
    username: str
    password: str
    fingerprints: tuple[Fingerprint, ...]
    opus: int
    """Opus's payload type."""
    direction: str
    """Direction of audio, from the client's side."""
    sctp_port: int
    max_message_bytes: int
    """Most bytes of a message to the client on the data channel."""

    @property
    def audio_mid(self) -> str:
        return self.mids[0 if self.audio_first else 1]


class Candidate(NamedTuple):
    """An address of this server."""

    address: str
    port: int
    priority: int


class Answer(msgspec.Struct, frozen=True):
    """Description of our end."""

    username: str
    password: str
    fingerprints: Sequence[Fingerprint]
    candidates: Sequence[Candidate]
    """Not empty."""
    ssrc: int
    cname: str


class _Section:
    """The attributes of one media section; those that it lacks are the session's."""

    def __init__(self, line: str, session: dict[str, list[str]]) -> None:
        words = line.removeprefix("m=").split()
        self.kind = words[0] if words else ""
        self.rejected = len(words) > 1 and words[1] == "0"
        self._session = session
        self.own: dict[str, list[str]] = {}

    def all(self, name: str) -> list[str]:
        return self.own.get(name) or self._session.get(name, [])

    def one(self, name: str, form: re.Pattern[str]) -> str:
        """Raises SdpError where it is missing, or has another form."""
        given = self.all(name)
        if not given or form.fullmatch(given[0]) is None:
            raise SdpError(f"has no `a={name}` that can be used")
        return given[0]


def read_offer(text: str) -> Offer:
    """Raises SdpError."""
    if len(text) > MAX_CHARS:
        raise SdpError(f"has {len(text)} characters; at most {MAX_CHARS} are read")
    lines = text.splitlines()
    if not lines or lines[0].strip() != "v=0":
        raise SdpError("must be a session description, which begins with `v=0`")
    if len(lines) > MAX_LINES:
        raise SdpError(f"has {len(lines)} lines; at most {MAX_LINES} are read")
    session, sections = _sections(lines)
    if "ice-lite" in session:
        raise SdpError("is from a client that only answers (`a=ice-lite`), and so does this server")
    kinds = [section.kind for section in sections]
    if sorted(kinds) != ["application", "audio"]:
        raise SdpError(
            "must have one section of audio and one of data (`m=application`), and no other: create the data channel "
            "before the offer, and offer no video"
        )
    if any(section.rejected and "bundle-only" not in section.own for section in sections):
        raise SdpError("has a section without a port")
    audio_first = kinds[0] == "audio"
    audio, data = sections if audio_first else sections[::-1]
    mids = (sections[0].one("mid", _TOKEN), sections[1].one("mid", _TOKEN))
    groups = [group.split() for group in session.get("group", [])]
    bundle = next((group[1:] for group in groups if group[:1] == ["BUNDLE"]), [])
    if sorted(bundle) != sorted(mids):
        raise SdpError("must bundle both sections (`a=group:BUNDLE`)")
    if "rtcp-mux" not in audio.own:
        raise SdpError("must send RTCP with RTP (`a=rtcp-mux`)")
    first = sections[mids.index(bundle[0])]
    if first.all("setup")[:1] != ["actpass"]:
        raise SdpError("must leave the roles in DTLS to the answer (`a=setup:actpass`)")
    return Offer(
        mids=mids,
        audio_first=audio_first,
        username=first.one("ice-ufrag", _UFRAG),
        password=first.one("ice-pwd", _PASSWORD),
        fingerprints=_fingerprints(first),
        opus=_opus(audio),
        direction=next((name for name in _DIRECTIONS if name in audio.own), "sendrecv"),
        sctp_port=_number(data, "sctp-port", _SCTP_PORT, 65535),
        max_message_bytes=_number(data, "max-message-size", _DEFAULT_MESSAGE_BYTES, 1 << 40) or MAX_MESSAGE_BYTES,
    )


def _sections(lines: Sequence[str]) -> tuple[dict[str, list[str]], list[_Section]]:
    """The attributes of the session, and its sections."""
    session: dict[str, list[str]] = {}
    sections: list[_Section] = []
    attributes = session
    for line in lines:
        if line.startswith("m="):
            sections.append(_Section(line, session))
            attributes = sections[-1].own
        elif line.startswith("a="):
            name, _, value = line[2:].partition(":")
            attributes.setdefault(name.strip(), []).append(value.strip())
    return session, sections


def _fingerprints(section: _Section) -> tuple[Fingerprint, ...]:
    found = [_FINGERPRINT.fullmatch(value) for value in section.all("fingerprint")]
    good = tuple(Fingerprint(match[1].lower(), match[2].upper()) for match in found if match is not None)
    if not good:
        raise SdpError("has no `a=fingerprint` of sha-256, sha-384 or sha-512")
    return good


def _opus(audio: _Section) -> int:
    for value in audio.own.get("rtpmap", []):
        match = _OPUS.fullmatch(value)
        if match is not None and 96 <= int(match[1]) <= 127:
            return int(match[1])
    raise SdpError("offers no Opus (`a=rtpmap:… opus/48000/2`)")


def _number(section: _Section, name: str, default: int, most: int) -> int:
    given = section.own.get(name)
    if given is None:
        return default
    if re.fullmatch(r"\d{1,12}", given[0]) is None or int(given[0]) > most:
        raise SdpError(f"has no `a={name}` that can be used")
    return int(given[0])


_ANSWERED: Final = {"sendrecv": "sendrecv", "sendonly": "recvonly", "recvonly": "sendonly", "inactive": "inactive"}


def write_answer(offer: Offer, answer: Answer) -> str:
    """Accepts the offer, with Opus only."""
    kinds = ("audio", "application") if offer.audio_first else ("application", "audio")
    lines = ["v=0", f"o=- {answer.ssrc} 1 IN IP4 127.0.0.1", "s=-", "t=0 0", f"a=group:BUNDLE {' '.join(offer.mids)}"]
    lines.append("a=msid-semantic: WMS *")
    for kind, mid in zip(kinds, offer.mids, strict=True):
        section = _audio(offer, answer) if kind == "audio" else _data(answer)
        lines += [*section, f"a=mid:{mid}", *_transport(answer)]
    return "\r\n".join(lines) + "\r\n"


def _audio(offer: Offer, answer: Answer) -> list[str]:
    return [
        f"m=audio {answer.candidates[0].port} UDP/TLS/RTP/SAVPF {offer.opus}",
        _address_line(answer),
        f"a={_ANSWERED[offer.direction]}",
        f"a=rtpmap:{offer.opus} opus/48000/2",
        f"a=fmtp:{offer.opus} maxplaybackrate=24000;stereo=0",
        "a=ptime:20",
        "a=rtcp-mux",
        f"a=msid:{answer.cname} audio",
        f"a=ssrc:{answer.ssrc} cname:{answer.cname}",
    ]


def _data(answer: Answer) -> list[str]:
    return [
        f"m=application {answer.candidates[0].port} UDP/DTLS/SCTP webrtc-datachannel",
        _address_line(answer),
        f"a=sctp-port:{_SCTP_PORT}",
        f"a=max-message-size:{MAX_MESSAGE_BYTES}",
    ]


def _address_line(answer: Answer) -> str:
    address = answer.candidates[0].address
    return f"c=IN {'IP6' if ':' in address else 'IP4'} {address}"


def _transport(answer: Answer) -> list[str]:
    return [
        f"a=ice-ufrag:{answer.username}",
        f"a=ice-pwd:{answer.password}",
        *(f"a=fingerprint:{one.algorithm} {one.value}" for one in answer.fingerprints),
        "a=setup:active",
        *(
            f"a=candidate:{place} 1 udp {one.priority} {one.address} {one.port} typ host"
            for place, one in enumerate(answer.candidates, 1)
        ),
        "a=end-of-candidates",
    ]
