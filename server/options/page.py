"""Prints ``docs/reference/options.md`` (``make reference``); a test holds the page to it."""

from .option import GROUPS, OPTIONS, Option
from .reading import CONFIG_FILE

_HEAD = """# Options

Each option of `stentor serve` is a flag (`--max-model-len 4096`), an environment variable
(`STENTOR_MAX_MODEL_LEN=4096`) and a key of the TOML file that `--config` names (`max-model-len = 4096`). A flag
overrides the environment, which overrides the file. An unknown option is an error that names the nearest one.
`run-batch` takes the same options, `pull` some of them. This page is generated from the program: `make reference`.
"""


def page() -> str:
    """The page, in Markdown."""
    parts = [_HEAD]
    for group, title in GROUPS.items():
        rows = "\n".join(_row(option) for option in (*OPTIONS, CONFIG_FILE) if option.group == group)
        parts.append(f"## {title.capitalize()}\n\n| option | default | |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _row(option: Option) -> str:
    value = option.default if option.path else None
    shown = "" if value in (None, ()) else "on" if value is True else "off" if value is False else str(value)
    flag = "MODEL" if option.name == "model" else f"--{'[no-]' if option.kind.switch else ''}{option.name}"
    text = option.help.replace("|", "\\|")
    also = f" (also `--{'`, `--'.join(option.aliases)}`)" if option.aliases else ""
    return f"| `{flag}` | {f'`{shown}`' if shown else ''} | {text}{also} |"


if __name__ == "__main__":
    print(page(), end="")
