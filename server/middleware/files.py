"""Files that the operator names and may replace while the server runs."""

from pathlib import Path


class FileRefused(Exception):
    """A file cannot be used; the message is one line that names it."""


def read_text(path: Path) -> str:
    """Raises FileRefused."""
    try:
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise FileRefused(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileRefused(f"{path}: cannot be read: it is not UTF-8") from error
