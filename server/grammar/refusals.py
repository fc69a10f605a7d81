"""Error messages about a schema: the place, and the expected value."""

from stentor.protocols.common.errors import BadRequest, refused


def refusal(path: str, why: str) -> BadRequest:
    return refused(path, why, "invalid_value")


def unsupported(path: str, keyword: str, unless: str = "") -> BadRequest:
    said = f"the keyword `{keyword}` is not supported{' ' + unless if unless else ''}"
    return BadRequest(f"`{path}`: {said}.", f"{path}.{keyword}", "unsupported_schema")
