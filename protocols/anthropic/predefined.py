"""Tools that Anthropic has described and that clients run: they name a type instead of an ``input_schema``."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class Predefined(NamedTuple):
    name: str
    """The only one that the tool may have."""
    description: str
    input_schema: dict[str, Any]


def _schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _commands(*names: str) -> dict[str, Any]:
    return {"command": {"type": "string", "enum": list(names)}}


_BASH: Final = Predefined(
    "bash",
    "Runs a command in a bash session that is kept from one call to the next, and returns its output.",
    _schema(
        {
            "command": _text("The command. Required unless the session is restarted."),
            "restart": {"type": "boolean", "description": "Begins a new session."},
        }
    ),
)

_FILE: Final[dict[str, Any]] = {
    "path": _text("The file or folder."),
    "view_range": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "view: the first and the last line to show, counted from 1; -1 is the last of the file.",
    },
    "file_text": _text("create: the content of the new file."),
    "old_str": _text("str_replace: the text to replace, which must stand in the file exactly once."),
    "new_str": _text("str_replace: the text in its place."),
    "insert_line": {"type": "integer", "description": "insert: the line behind which to insert; 0 is the beginning."},
}
_INSERTED: Final = {"insert_text": _text("insert: the text to insert.")}
_INSERTED_BEFORE: Final = {"new_str": _text("str_replace: the text in its place. insert: the text to insert.")}
_EDITS: Final = "Shows, creates and edits text files."


def _editor(name: str, commands: dict[str, Any], inserted: dict[str, Any]) -> Predefined:
    return Predefined(name, _EDITS, _schema({**commands, **_FILE, **inserted}, "command", "path"))


_EDITOR_WITH_UNDO: Final = _editor(
    "str_replace_editor", _commands("view", "create", "str_replace", "insert", "undo_edit"), _INSERTED_BEFORE
)
_EDITOR: Final = _editor("str_replace_based_edit_tool", _commands("view", "create", "str_replace", "insert"), _INSERTED)

_MEMORY: Final = Predefined(
    "memory",
    "Keeps notes for later conversations, in files below /memories. Look there before a task, and write down progress.",
    _schema(
        {
            **_commands("view", "create", "str_replace", "insert", "delete", "rename"),
            **_FILE,
            **_INSERTED,
            "path": _text("The file or folder, below /memories; not for rename."),
            "old_path": _text("rename: the file or folder."),
            "new_path": _text("rename: its new name."),
        },
        "command",
    ),
)

PREDEFINED: Final[Mapping[str, Predefined]] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _EDITOR_WITH_UNDO,
    "text_editor_20250124": _EDITOR_WITH_UNDO,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
}
"""By type."""
