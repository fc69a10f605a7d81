"""PDFs as they stand in the standard: whole ones, and those that say what is not true."""

import zlib
from collections.abc import Sequence
from typing import Final

FONT: Final = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"


def stream(content: bytes, head: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), head, content)


def flate(content: bytes) -> bytes:
    return stream(zlib.compress(content, 9), b"/Filter /FlateDecode")


def written(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """Objects 1, 2, …, of which the first is the catalogue."""
    out = bytearray(b"%PDF-1.7\n")
    places = []
    for number, content in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer << /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, trailer, start)
    return bytes(out)


def pdf(
    *contents: bytes, box: bytes = b"[0 0 200 100]", count: int | None = None, page: bytes = b"", trailer: bytes = b""
) -> bytes:
    """A page for each content: a stream object, or the operators of one."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents) if count is None else count),
        FONT,
    ]
    for index, content in enumerate(contents):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox %s /Resources << /Font << /F 3 0 R >> >> /Contents %d 0 R %s >>"
            % (box, 5 + 2 * index, page)
        )
        objects.append(content if content.startswith(b"<<") else stream(content))
    return written(objects, trailer)


def says(text: str) -> bytes:
    """The operators that write it."""
    return b"BT /F 12 Tf 10 50 Td (%s) Tj ET" % text.encode("latin-1")


SQUARE: Final = b"1 0 0 rg 0 0 100 100 re f"
"""A picture without text: the left half is red."""
