"""Tools that OpenAI defines and clients run: shells, patches, and the search for further tools.

Each is offered to the model as a function. The arguments of its call become an item of the tool's own type, and such an
item in the input becomes a call of the function again.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from ...common.encoding import encode

Item = dict[str, Any]
ClientCall = Literal["local_shell_call", "shell_call", "apply_patch_call", "tool_search_call"]

CALLS: Final[Mapping[str, ClientCall]] = {
    "local_shell": "local_shell_call",
    "shell": "shell_call",
    "apply_patch": "apply_patch_call",
    "tool_search": "tool_search_call",
}
"""By the tool's type, which is also the function's name: the type of its call items."""
_FUNCTIONS: Final[Mapping[str, str]] = {call: name for name, call in CALLS.items()}


class LocalShellAction(msgspec.Struct):
    command: list[str]
    env: dict[str, str] = {}
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None
    type: Literal["exec"] = "exec"


class ShellAction(msgspec.Struct):
    commands: list[str]
    max_output_length: int | None = None
    timeout_ms: int | None = None


class LocalEnvironment(msgspec.Struct):
    """The only one: the client runs the commands."""

    type: Literal["local"] = "local"


class PatchOperation(msgspec.Struct, omit_defaults=True):
    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None
    """None for a deleted file only."""

    def __post_init__(self) -> None:
        self.diff = None if self.type == "delete_file" else self.diff or ""


class ShellOutcome(msgspec.Struct, omit_defaults=True):
    type: Literal["exit", "timeout"]
    exit_code: int | None = None

    def __post_init__(self) -> None:
        self.exit_code = None if self.type == "timeout" else self.exit_code or 0


class ShellOutput(msgspec.Struct):
    """Output of one command."""

    stdout: str
    stderr: str
    outcome: ShellOutcome


class LocalShellCallItem(msgspec.Struct, tag_field="type", tag="local_shell_call"):
    id: str
    call_id: str
    action: LocalShellAction
    status: Literal["in_progress", "completed"] = "in_progress"


class ShellCallItem(msgspec.Struct, tag_field="type", tag="shell_call"):
    id: str
    call_id: str
    action: ShellAction
    environment: LocalEnvironment = msgspec.field(default_factory=LocalEnvironment)
    status: Literal["in_progress", "completed"] = "in_progress"


class ApplyPatchCallItem(msgspec.Struct, tag_field="type", tag="apply_patch_call"):
    id: str
    call_id: str
    operation: PatchOperation
    status: Literal["in_progress", "completed"] = "in_progress"


class ToolSearchCallItem(msgspec.Struct, tag_field="type", tag="tool_search_call"):
    id: str
    call_id: str
    arguments: dict[str, Any]
    execution: Literal["client"] = "client"
    status: Literal["in_progress", "completed"] = "in_progress"


ClientCallItem = LocalShellCallItem | ShellCallItem | ApplyPatchCallItem | ToolSearchCallItem


_ITEMS: Final[Mapping[ClientCall, tuple[Callable[[str, str, Any], ClientCallItem], Any]]] = {
    "local_shell_call": (LocalShellCallItem, LocalShellAction),
    "shell_call": (ShellCallItem, ShellAction),
    "apply_patch_call": (ApplyPatchCallItem, PatchOperation),
    "tool_search_call": (ToolSearchCallItem, dict[str, Any]),
}
"""Constructor of a call's item, and the type of its function's arguments."""


def call_item(kind: ClientCall, id: str, call_id: str, arguments: str) -> ClientCallItem | None:
    """The item of a call with these arguments; None if the arguments do not match the function's schema."""
    item, taken = _ITEMS[kind]
    try:
        return item(id, call_id, msgspec.json.decode(arguments, type=taken))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def function_of(item: Item) -> tuple[str, str]:
    """The function that an item of type :data:`ClientCall` is a call of, and its arguments in JSON."""
    match item["type"]:
        case "local_shell_call" | "shell_call":
            given = {
                name: value for name, value in item["action"].items() if name != "type" and value not in (None, {})
            }
        case "apply_patch_call":
            given = item["operation"]
        case _:
            given = item["arguments"]
    return _FUNCTIONS[item["type"]], encode(given).decode()


def output_text(item: Item) -> str:
    """Text for the model of such a call's output."""
    match item["type"]:
        case "local_shell_call_output":
            return str(item["output"])
        case "shell_call_output":
            return encode(item["output"]).decode()
        case _:
            said = item.get("output") or ""
            if item["status"] == "failed":
                return f"Error: {said or 'the patch could not be applied.'}"
            return said or "The patch was applied."


def described(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A checked tool of a type in :data:`CALLS`, as a function for the model.

    ``strict``: its arguments always match its items.
    """
    match tool["type"]:
        case "local_shell":
            return _function("local_shell", _LOCAL_SHELL, _COMMAND, "command")
        case "shell":
            return _function("shell", _SHELL + _skills(tool.get("environment") or {}), _COMMANDS, "commands")
        case "apply_patch":
            return _function("apply_patch", _APPLY_PATCH, _OPERATION, "type", "path")
        case _:
            own = {"description": tool.get("description") or _TOOL_SEARCH}
            if tool.get("parameters"):  # the client's, as it will read them
                return {"type": "function", "name": "tool_search", "parameters": tool["parameters"], **own}
            return {**_function("tool_search", "", _SEARCH, "query"), **own}


def _function(name: str, description: str, properties: dict[str, Any], *required: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": description, "parameters": parameters, "strict": True}


def _skills(environment: Mapping[str, Any]) -> str:
    skills = [f"- {one['name']} ({one['path']}): {one['description']}" for one in environment.get("skills") or ()]
    return "\n".join(["\n\nSkills, each described in a file SKILL.md in its folder:", *skills]) if skills else ""


_TIMEOUT: Final = {"type": "integer", "minimum": 1, "description": "Milliseconds after which it is stopped."}

_LOCAL_SHELL: Final = "Runs one command on the user's machine, and returns its output."
_COMMAND: Final[dict[str, Any]] = {
    "command": {
        "type": "array",
        "items": {"type": "string"},
        "description": 'The program and its arguments. For shell syntax: ["bash", "-lc", "…"].',
    },
    "working_directory": {"type": "string", "description": "The folder in which it runs."},
    "timeout_ms": _TIMEOUT,
    "env": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "Environment variables to set.",
    },
}

_SHELL: Final = "Runs shell commands on the user's machine, and returns stdout, stderr and the exit code of each."
_COMMANDS: Final[dict[str, Any]] = {
    "commands": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Shell commands. They may run at the same time.",
    },
    "timeout_ms": _TIMEOUT,
    "max_output_length": {
        "type": "integer",
        "minimum": 1,
        "description": "Characters of each command's output that are returned.",
    },
}

_APPLY_PATCH: Final = "Creates, updates or deletes one file."
_OPERATION: Final[dict[str, Any]] = {
    "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
    "path": {"type": "string", "description": "The file, from the root of the workspace."},
    "diff": {
        "type": "string",
        "description": (
            "To create a file: its lines, each behind a +. To update one: hunks that each begin with a line @@, "
            "with a space before lines that stay, - before lines to remove, and + before lines to add."
        ),
    },
}

_TOOL_SEARCH: Final = "Searches for further tools. Those that it finds can be called from then on."
_SEARCH: Final[dict[str, Any]] = {
    "query": {"type": "string", "description": "What the tools are to do, in a few words."},
    "limit": {"type": "integer", "minimum": 1, "description": "How many tools to find at most."},
}
