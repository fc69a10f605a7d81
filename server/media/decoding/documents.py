"""Documents of clients: PDFs by PDFium, and plain texts. Pure functions; PDFs are for :mod:`.document_child`.

A page that has text is read as text. One that has none, such as a scan, becomes a picture.
"""

import io
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ..refusal import Refusal
from .decoded import DecodedLimits, too_much

if TYPE_CHECKING:
    import pypdfium2

Kind = Literal["pdf", "image", "text", "unknown"]

Allow = Callable[[float], object]

_PDF: Final = b"%PDF-"
_PDF_WITHIN: Final = 1024
"""Bytes before the head that readers pass over."""
_IMAGES: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM", b"II*\0", b"MM\0*")
_MARKS: Final = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_POINTS_SCALE: Final = 2.0
"""Pixels of a point, which is a 72nd of an inch, where the page is not too large for that."""
_QUALITY: Final = 90
_REHEARSED: Final = b"""%PDF-1.4
1 0 obj <</Type/Catalog/Pages 2 0 R>> endobj
2 0 obj <</Type/Pages/Kids[3 0 R 6 0 R]/Count 2>> endobj
3 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>> endobj
4 0 obj <</Length 18>> stream
BT/F 9 Tf(a)Tj ET
endstream endobj
5 0 obj <</Type/Font/Subtype/Type1/BaseFont/Helvetica>> endobj
6 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>> endobj
trailer <</Root 1 0 R>>
"""
"""A page of each kind."""
_SEEN: Final = "it cannot be read as a PDF"


class Page(msgspec.Struct, frozen=True):
    """Either its text or its picture."""

    text: str
    image: bytes = b""
    """A JPEG file."""


def kind_of(data: bytes) -> Kind:
    """By the first bytes of the file, whatever its name."""
    if _PDF in data[: _PDF_WITHIN + len(_PDF)]:
        return "pdf"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image"
    if not data.startswith(tuple(mark for mark, _ in _MARKS)) and data.startswith(_IMAGES):
        return "image"
    return "unknown" if b"\0" in data[:_PDF_WITHIN] and not data.startswith((b"\xff\xfe", b"\xfe\xff")) else "text"


def read_text(data: bytes) -> str:
    """A plain text in UTF-8, or in UTF-16 with a byte order mark. Raises :class:`..refusal.Refusal`."""
    encoding = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise Refusal("the file is neither a PDF, nor an image, nor text in UTF-8") from None
    if "\0" in text:
        raise Refusal("the file is neither a PDF, nor an image, nor text in UTF-8")
    return text


def read_pdf(data: bytes, limits: DecodedLimits, allow: Allow) -> list[Page]:
    """All pages, in order. Raises :class:`..refusal.Refusal` for a file that is broken, encrypted or too large.

    Before each stretch of work, ``allow`` gets its limit in seconds of this process's time: a page of a few hundred
    bytes can keep PDFium busy for ever, and only the kernel can stop that.
    """
    import pypdfium2

    until = time.process_time() + limits.cpu_seconds
    allow(limits.page_seconds)
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        why = "it is protected by a password" if "password" in str(error).lower() else _SEEN
        raise Refusal(f"the document: {why}") from None
    try:
        count = len(document)
        if count < 1:
            raise Refusal("the document has no pages")
        if count > limits.pages:
            raise too_much("document", f"{count} pages", str(limits.pages))
        pages = []
        left = limits.document_chars
        for index in range(count):
            allow(limits.page_seconds)
            page = _page(document, index, left, limits)
            left -= len(page.text)
            pages.append(page)
            if time.process_time() > until:
                raise Refusal("the document takes too long to read")
        return pages
    except (pypdfium2.PdfiumError, ValueError, OverflowError):
        raise Refusal(f"the document: {_SEEN}") from None
    finally:
        document.close()


def rehearse() -> None:
    """Imports all that a document needs, while files can still be opened."""
    text, blank = read_pdf(_REHEARSED, DecodedLimits(), lambda _seconds: None)
    if not text.text or not blank.image:
        raise RuntimeError("PDFium reads no text")


def _page(document: "pypdfium2.PdfDocument", index: int, left: int, limits: DecodedLimits) -> Page:
    page = document[index]
    try:
        texts = page.get_textpage()
        try:
            if texts.count_chars() > left:
                raise too_much("document", "more text", f"{limits.document_chars} characters")
            text = texts.get_text_range().replace("\r\n", "\n").replace("\0", "").strip()
        finally:
            texts.close()
        return Page(text) if text else Page("", _picture(page, limits))
    finally:
        page.close()


def _picture(page: "pypdfium2.PdfPage", limits: DecodedLimits) -> bytes:
    width, height = page.get_size()
    longer, shorter = max(width, height), min(width, height)
    if not 0 < shorter <= longer < float("inf"):
        raise Refusal("a page of the document has no size")
    # a page is never less than a pixel wide: one of a thousandth of a point beside a mile has none
    scale = min(_POINTS_SCALE, limits.page_edge / longer)
    if shorter * scale < 1:
        raise Refusal("a page of the document is too narrow to be seen")
    bitmap = page.render(scale=scale, may_draw_forms=False)
    try:
        out = io.BytesIO()
        bitmap.to_pil().convert("RGB").save(out, "JPEG", quality=_QUALITY)
        return out.getvalue()
    finally:
        bitmap.close()
