"""PDFs and plain texts as parts of a conversation, and the process that reads PDFs."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stentor.loadtest.processes import alive
from stentor.server.media.decoding.decoded import DecodedLimits
from stentor.server.media.decoding.document_process import DocumentProcess
from stentor.server.media.decoding.documents import Page, kind_of, read_pdf, read_text
from stentor.server.media.refusal import Refusal
from stentor.tests.server.media.pdfs import SQUARE, flate, pdf, says, stream, written

LIMITS = DecodedLimits()


def read(data: bytes, limits: DecodedLimits = LIMITS) -> list[Page]:
    return read_pdf(data, limits, lambda _seconds: None)


def picture(page: Page) -> np.ndarray[Any, Any]:
    assert not page.text
    return np.asarray(Image.open(io.BytesIO(page.image)))


def test_a_page_with_text_is_text_and_one_without_is_a_picture() -> None:
    first, second, third = read(pdf(says("Hello, world"), SQUARE, says("caf\xe9")))
    assert (first, third.image) == (Page("Hello, world"), b"")
    seen = picture(second)
    assert seen.shape == (200, 400, 3), "144 pixels an inch"
    assert np.abs(seen[:, :180].astype(int) - (255, 0, 0)).max() < 10
    assert seen[:, 220:].min() > 245


@pytest.mark.parametrize(
    ("box", "shape"), [(b"[0 0 14000 7000]", (784, 1568)), (b"[0 0 100 200]", (400, 200)), (b"[0 0 1e9 1e9]", None)]
)
def test_a_page_is_never_larger_than_its_limit(box: bytes, shape: tuple[int, int] | None) -> None:
    seen = picture(read(pdf(SQUARE, box=box))[0])
    assert max(seen.shape) <= LIMITS.page_edge
    assert shape is None or seen.shape[:2] == shape


@pytest.mark.parametrize(
    ("data", "limits", "why"),
    [
        (b"", LIMITS, "cannot be read as a PDF"),
        (b"%PDF-1.7\n" + b"x" * 1000, LIMITS, "cannot be read as a PDF"),
        (pdf(says("a"))[:300], LIMITS, "cannot be read as a PDF"),
        (pdf(), LIMITS, "no pages|cannot be read"),
        (pdf(*[SQUARE] * 4), DecodedLimits(pages=3), "has 4 pages; this server decodes at most 3"),
        (pdf(says("abc"), says("abc")), DecodedLimits(document_chars=5), "more text"),
        (pdf(SQUARE), DecodedLimits(cpu_seconds=0), "too long to read"),
        (pdf(SQUARE, box=b"[0 0 0.01 100000]"), LIMITS, "too narrow"),
        (pdf(SQUARE, trailer=b"/Encrypt << /Filter /Foo /V 9 >>"), LIMITS, "cannot be read as a PDF"),
    ],
)
def test_a_document_that_cannot_be_read_or_is_too_much_is_refused(data: bytes, limits: DecodedLimits, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        read(data, limits)


def test_one_that_needs_a_password_says_so() -> None:
    keys = b"/O <%s> /U <%s>" % (b"00" * 32, b"11" * 32)
    locked = b"/Encrypt << /Filter /Standard /V 2 /R 3 /Length 128 /P -4 %s >> /ID [<00><00>]" % keys
    with pytest.raises(Refusal, match="password"):
        read(pdf(SQUARE, trailer=locked))


def test_what_the_file_says_of_its_pages_is_not_believed() -> None:
    assert read(pdf(says("a"), count=10**9)) == [Page("a")]
    assert read(pdf(says("a"), count=-5)) == [Page("a")]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"%PDF-1.7", "pdf"),
        (b"junk\n%PDF-1.4", "pdf"),
        (b"\x89PNG\r\n\x1a\n...", "image"),
        (b"\xff\xd8\xff\xe0", "image"),
        (b"RIFF....WEBPVP8 ", "image"),
        ("grüße".encode(), "text"),
        (b"", "text"),
        ("a".encode("utf-16"), "text"),
        (b"PK\3\4\0\0", "unknown"),
        (b"\x7fELF\0", "unknown"),
    ],
)
def test_a_file_is_known_by_how_it_begins(data: bytes, kind: str) -> None:
    assert kind_of(data) == kind


def test_plain_text_is_utf_8_or_marked_as_utf_16() -> None:
    assert read_text("grüße".encode()) == "grüße"
    assert read_text("\ufeffgrüße".encode()) == "grüße"
    assert read_text("grüße".encode("utf-16")) == "grüße"
    for data in (b"\xff", "grüße".encode("latin-1"), b"a\0b", b"\xff\xfea"):
        with pytest.raises(Refusal, match="neither a PDF"):
            read_text(data)


# ---- the process


@pytest.fixture(scope="module")
def process() -> Iterator[DocumentProcess]:
    process = DocumentProcess(DecodedLimits(page_seconds=0.4))
    yield process
    process.close()


def _forms(content: bytes, *, itself: bool) -> bytes:
    """A page of ten forms, each of which has ten of the next, or of itself."""
    head = b"/Type /XObject /Subtype /Form /BBox [0 0 10 10] /Resources << /XObject << /X %d 0 R >> >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 10 10] /Contents 4 0 R "
        b"/Resources << /XObject << /X 5 0 R >> >> >>",
        stream(content),
    ]
    objects += [stream(content, head % (5 if itself else 6 + depth)) for depth in range(1 if itself else 20)]
    return written(objects)


HOSTILE = {
    "a form in itself": _forms(b"/X Do " * 10, itself=True),
    "forms in forms": _forms(b"/X Do " * 10, itself=False),
    "text of 25 megabytes": pdf(flate(says("a" * 1000) * 25_000)),
}


def test_pages_come_back_as_they_were_read(process: DocumentProcess) -> None:
    data = pdf(says("Hello"), SQUARE)
    assert process.read(data) == read(data)
    with pytest.raises(Refusal, match="cannot be read as a PDF"):
        process.read(b"none")
    pid = process.pid
    assert process.read(data) == read(data)
    assert process.pid == pid, "one for many documents"


@pytest.mark.parametrize("name", ["a form in itself", "forms in forms"])
def test_a_page_without_end_ends_its_reader_and_nothing_else(process: DocumentProcess, name: str) -> None:
    process.start()
    pid = process.pid
    assert pid is not None
    with pytest.raises(Refusal, match="too long to read"):
        process.read(HOSTILE[name])
    assert not alive(pid)
    assert process.read(pdf(says("Hello"))) == [Page("Hello")]


def test_a_page_that_unpacks_to_very_much_is_refused(process: DocumentProcess) -> None:
    with pytest.raises(Refusal):
        process.read(HOSTILE["text of 25 megabytes"])
    assert process.read(pdf(says("Hello"))) == [Page("Hello")]
