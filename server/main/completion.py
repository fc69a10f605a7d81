"""``stentor completion SHELL``: a completion script for commands, options and their values, made from the parsers."""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

_FILES: Final = frozenset({"FILE", "PATH", "FOLDER", "MODEL"})
"""Placeholders of values that may be a file."""
_MOST_CHARS: Final = 70
_WORD: Final = re.compile(r"[a-z0-9_]+")


class Flag(msgspec.Struct, frozen=True):
    """One option of a command, or a positional argument."""

    spellings: tuple[str, ...]
    """Empty for a positional argument."""
    help: str
    values: tuple[str, ...] = ()
    """Its possible values, if known."""
    placeholder: str = ""
    """Placeholder of its value; empty: it takes none."""

    @property
    def is_file(self) -> bool:
        return not _FILES.isdisjoint(self.placeholder.split("|"))

    @property
    def summary(self) -> str:
        """The beginning of its help, on a line."""
        first = re.split(r"; |\. | \(default", " ".join(self.help.split()))[0]
        return first if len(first) <= _MOST_CHARS else first[: _MOST_CHARS - 1] + "…"


class Command(msgspec.Struct, frozen=True):
    help: str
    flags: Sequence[Flag] = ()


def flag(spellings: Sequence[str], help: str, metavar: str | None, choices: Iterable[str] = ()) -> Flag:
    """``metavar``: placeholder of its value; None: it takes none. ``auto|none|NAME`` lists its values."""
    values = tuple(choices) or tuple(part for part in (metavar or "").split("|") if _WORD.fullmatch(part))
    return Flag(tuple(spellings), help, values, metavar or "")


def described(root: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> dict[str, Command]:
    """All that the command line takes, as its help shows it. ``commands``: the parsers below ``root``."""
    helps = {
        choice.dest: choice.help or ""
        for action in root._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }
    return {name: Command(helps.get(name, ""), _flags(parser)) for name, parser in commands.items()}


def _flags(parser: argparse.ArgumentParser) -> list[Flag]:
    found = []
    for action in parser._actions:
        if action.help in (None, argparse.SUPPRESS):
            continue
        takes = None if action.nargs == 0 else str(action.metavar or action.dest.upper())
        choices = [str(value) for value in action.choices or ()]
        found.append(flag(action.option_strings, action.help or "", takes, choices))
    return found


def script(shell: str, commands: Mapping[str, Command]) -> str:
    """For bash, zsh or fish."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)


# ---- bash


def _bash(commands: Mapping[str, Command]) -> str:
    options, values = [], []
    for name, command in commands.items():
        words = " ".join(spelling for each in command.flags for spelling in each.spellings)
        alone = " ".join(value for each in command.flags if not each.spellings for value in each.values)
        options.append(f"    {name}) words={_quoted(words)}; alone={_quoted(alone)} ;;")
        for each in command.flags:
            pattern = "|".join(f"{name}:{spelling}" for spelling in each.spellings)
            if pattern and each.placeholder:
                found = f'COMPREPLY=($(compgen -W {_quoted(" ".join(each.values))} -- "$current"))'
                files = 'COMPREPLY+=($(compgen -f -- "$current"))' if each.is_file else ""
                values.append(f"    {pattern}) {'; '.join(filter(None, (found, files)))}; return ;;")
    return f"""# stentor in bash: source <(stentor completion bash)
_stentor() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
  local words alone
  compopt -o filenames 2>/dev/null
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {_quoted(" ".join(commands))} -- "$current"))
    return
  fi
  case "$command:$previous" in
{chr(10).join(values)}
  esac
  case "$command" in
{chr(10).join(options)}
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "$alone" -- "$current") $(if [ -z "$alone" ]; then compgen -f -- "$current"; fi)) ;;
  esac
}}
complete -F _stentor stentor
"""


# ---- zsh


def _zsh(commands: Mapping[str, Command]) -> str:
    described = " ".join(_quoted(f"{name}:{command.help}") for name, command in commands.items())
    cases = []
    for name, command in commands.items():
        specs = [spec for each in command.flags for spec in _zsh_specs(each)]
        body = " \\\n      ".join(["_arguments -S", *specs]) if specs else "_files"
        cases.append(f"    {name})\n      {body}\n      ;;")
    return f"""#compdef stentor
# stentor in zsh: source <(stentor completion zsh), or write it to a file _stentor in a folder of $fpath
_stentor() {{
  local -a commands
  if (( CURRENT == 2 )); then
    commands=({described})
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{chr(10).join(cases)}
  esac
}}
if [ "$funcstack[1]" = _stentor ]; then _stentor "$@"; else compdef _stentor stentor; fi
"""


def _zsh_specs(each: Flag) -> list[str]:
    action = f"({' '.join(each.values)})" if each.values else "_files" if each.is_file else " "
    value = f":{_plain(each.placeholder)}:{action}" if each.placeholder else ""
    if not each.spellings:
        return [_quoted(f"*{value}")]
    return [_quoted(f"*{spelling}[{_plain(each.summary)}]{value}") for spelling in each.spellings]


def _plain(text: str) -> str:
    """Without characters that ``_arguments`` parses."""
    return re.sub(r"[\[\]:\\]", " ", text)


# ---- fish


def _fish(commands: Mapping[str, Command]) -> str:
    lines = ["# stentor in fish: stentor completion fish | source", "complete -c stentor -f"]
    for name, command in commands.items():
        lines.append(f"complete -c stentor -n __fish_use_subcommand -a {name} -d {_fish_quoted(command.help)}")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for each in command.flags:
            takes = "" if not each.placeholder else "-r -F " if each.is_file else "-x "
            values = f"-a {_fish_quoted(' '.join(each.values))} " if each.values else ""
            named = [
                f"-l {spelling[2:]}" if spelling.startswith("--") else f"-o {spelling[1:]}"
                for spelling in each.spellings
            ]
            lines += (
                f"complete -c stentor {seen} {spelt} {takes}{values}-d {_fish_quoted(each.summary)}" for spelt in named
            )
            if not named:
                lines.append(f"complete -c stentor {seen} {'-F ' if each.is_file else ''}{values}".rstrip())
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
