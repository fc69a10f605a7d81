"""Writes the generated pages of ``docs/reference/`` (``make reference``); a test holds the pages to it."""

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from prometheus_client.core import Metric

from stentor.engine.model_config.gguf.config import gguf_names
from stentor.engine.model_config.hf.config import DECODERS
from stentor.protocols.ipc.actors import EngineReady, Stats

from ..common import exit_codes
from ..media.metrics import MediaMetrics
from ..observability.figures import AdapterFigures, WeightFigures
from ..observability.metrics import Metrics
from ..options.option import GROUPS, OPTIONS, Option
from ..options.reading import CONFIG_FILE
from ..parsing.output import AUTO, TOOL_FORMATS, settle_output
from ..parsing.reasoning.formats import REASONING_FORMATS
from ..pooling.metrics import EmbeddingMetrics
from ..tts.metrics import SpeechMetrics
from .architectures import computed, described, kinds, parity_models, remarks, takes, tested_formats
from .request_fields import fields_page
from .tested import MEDIA_FILE, PARITY_FILE, TEXT_FILE

_GENERATED: Final = "This page is generated from the program: `make reference`."
_OPTIONS_HEAD = """# Options

Each option of `stentor serve` is a flag (`--max-model-len 4096`), an environment variable
(`STENTOR_MAX_MODEL_LEN=4096`) and a key of the TOML file of `--config` (`max-model-len = 4096`). A flag overrides the
environment, which overrides the file. An unknown option is an error that suggests the nearest one; flags of vLLM
and SGLang that cannot change an answer are taken, with a warning. `run-batch` takes the same
options, `pull` some of them. This page is generated from the program: `make reference`.
"""
_COMMON_LABELS: Final = frozenset({"model_name", "le"})
_VARYING_FAMILIES: Final = ("stentor:cache_config_info", "stentor:lora_requests_info")
_VARYING_LABELS: Final = frozenset({"status", "process", "version", "python"})
"""Labels whose values depend on the machine or on earlier events."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Format = TypeVar("Format", bound=_Named)


class _IdleEngine:
    """An engine that is ready and has done nothing."""

    stats = Stats(0, 0, 0.0, 0, 0, 0, 0, 0)
    ready = EngineReady(0, 0, 0, [], [])
    engine_restarts = 0


class _FirstWeights:
    weight_version = ""
    weight_updates = 0


def metric_families() -> list[Metric]:
    """Every metric that a server with models of all kinds has, in the order of ``/metrics``."""
    registry = Metrics("MODEL", _IdleEngine()).registry
    SpeechMetrics(registry, "MODEL")
    EmbeddingMetrics(registry, "MODEL")
    MediaMetrics(registry, "MODEL")
    AdapterFigures("MODEL", 0, lambda: _IdleEngine.stats, str, registry)
    WeightFigures(registry, "MODEL", _FirstWeights())
    return [family for family in registry.collect() if not family.name.endswith("_created")]


def metric_name(family: Metric) -> str:
    """Prometheus' name: a counter's samples end in ``_total``."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def metrics_page() -> str:
    """``metrics.md``."""
    rows = [
        f"| `{metric_name(family)}` | {family.type} | {_labels(family)} | {_cell(family.documentation)} |"
        for family in metric_families()
    ]
    head = (
        "`GET /metrics` answers in Prometheus' text format. Names follow vLLM's, under `stentor:`. Every sample "
        "also has the label `model_name`. Times are in seconds. A histogram `NAME` has the series `NAME_bucket`, "
        "`NAME_sum` and `NAME_count`. Which to watch, and what to do: [metrics and alerts](../operate/metrics.md)."
    )
    return _page("Metrics", head, _table(("metric", "kind", "labels", "meaning"), rows))


def _labels(family: Metric) -> str:
    """Names of labels, with the values of those that have a closed set of them."""
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label in sample.labels.keys() - _COMMON_LABELS:
            values.setdefault(label, {})[sample.labels[label]] = None
    shown = []
    for label in sorted(values):
        closed = label not in _VARYING_LABELS and family.name not in _VARYING_FAMILIES
        shown.append(f"`{label}`" + (f": {', '.join(f'`{value}`' for value in values[label])}" if closed else ""))
    return "; ".join(shown)


def parsers_page() -> str:
    """``parsers.md``."""
    reasoning = [
        f"| `{name}` | {_codes(others)} | {_codes((format.begin,))} | {_codes((format.end,))} |"
        for name, others, format in _named(REASONING_FORMATS)
    ]
    calls = [
        f"| `{name}` | {_codes(others)} | {_codes(sorted(format.markers))} |"
        for name, others, format in _named(TOOL_FORMATS)
    ]
    head = (
        "`--reasoning-parser` and `--tool-call-parser` take these names, which are vLLM's, besides `auto` and `none`. "
        "`auto`, the default, chooses by the chat template; start-up logs the choice."
    )
    return _page(
        "Parsers",
        head,
        "## Reasoning\n",
        _table(("name", "other names", "begins with", "ends with"), reasoning),
        "## Tool calls\n\n`plain` is for models whose chat template does not support tools.\n",
        _table(("name", "other names", "markers"), calls),
    )


def _named(formats: Mapping[str, Format]) -> list[tuple[str, list[str], Format]]:
    """Each format once: its name, its other names, itself."""
    found: dict[str, tuple[list[str], Format]] = {}
    for name, format in formats.items():
        others, _ = found.setdefault(format.name, ([], format))
        if name != format.name:
            others.append(name)
    return [(name, others, format) for name, (others, format) in sorted(found.items())]


def models_page() -> str:
    """``models.md``."""
    rows = []
    for name in sorted(DECODERS, key=str.lower):
        spec = described(name)
        output = settle_output(AUTO, AUTO, "", name)
        thinks = "" if output.reasoning is None else _codes((output.reasoning.name,))
        calls = _codes((output.tools.name,)) if output.harmony and output.tools is not None else ""
        cells = (
            f"`{name}`",
            ", ".join(kinds(spec)),
            takes(name),
            _codes(gguf_names(name)),
            computed(spec),
            ", ".join(tested_formats(name)),
            _codes(parity_models(name)),
            thinks,
            calls,
            "; ".join(remarks(name, spec)),
        )
        rows.append(f"| {' | '.join(cells)} |")
    head = (
        "The decoders that Stentor's own code runs, by the `architectures` of their `config.json`. Which models have "
        "these architectures, and other kinds of models: [models and formats](../guides/models.md)."
    )
    meanings = _table(
        ("column", "meaning"),
        (
            "| layers | `dense`: attention and an MLP in every layer |",
            "| media | input besides text, as far as tests cover it |",
            "| GGUF | supported `general.architecture` of GGUF files |",
            "| CPU | `program`: a step is one native call, with Python calls for the named operations. A GPU runs one "
            "operation a call, in CUDA graphs |",
            "| weights | formats that tests cover for the architecture. The same code reads a format in every "
            "architecture |",
            f"| parity | tiny models whose logits and tokens `{PARITY_FILE}` compares with transformers' in float32, "
            f"or `{MEDIA_FILE}` with media in the prompts, or `{TEXT_FILE}` where a text part is stored alone; the "
            "names are the tests' parameters |",
            "| reasoning, tool calls | the format, if the architecture decides it. Otherwise the chat template does "
            "([parsers](parsers.md)) |",
            "| remarks | limitations and others |",
        ),
    )
    columns = (
        "architecture",
        "layers",
        "media",
        "GGUF",
        "CPU",
        "weights",
        "parity",
        "reasoning",
        "tool calls",
        "remarks",
    )
    return _page("Models", head, meanings, _table(columns, rows))


def exit_codes_page() -> str:
    """``exit-codes.md``."""
    rows: list[list[str]] = []
    for line in (exit_codes.__doc__ or "").splitlines():
        if match := re.match(r"(\d+) {2,}(.*)", line):
            rows.append([match[1], match[2]])
        elif rows and re.match(r" {6}\S", line):
            rows[-1][1] += " " + line.strip()
    lines = [f"| `{code}` | {_cell(meaning.replace('``', '`'))} |" for code, meaning in rows]
    head = (
        "Exit codes of every `stentor` command. After a failure, the last line on stderr gives the reason. 130 and 143 "
        "are 128 plus the number of the signal, as in a shell."
    )
    return _page("Exit codes", head, _table(("code", "meaning"), lines))


def _page(title: str, head: str, *parts: str) -> str:
    head = textwrap.fill(f"{head} {_GENERATED}", 120, break_long_words=False, break_on_hyphens=False)
    return "\n".join((f"# {title}\n", f"{head}\n", *parts))


def options_page() -> str:
    """``options.md``."""
    parts = [_OPTIONS_HEAD]
    for group, title in GROUPS.items():
        rows = "\n".join(_option_row(option) for option in (*OPTIONS, CONFIG_FILE) if option.group == group)
        parts.append(f"## {title.capitalize()}\n\n| option | default | |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _option_row(option: Option) -> str:
    value = option.default if option.path else None
    shown = "" if value in (None, ()) else "on" if value is True else "off" if value is False else str(value)
    flag = "MODEL" if option.name == "model" else f"--{'[no-]' if option.kind.switch else ''}{option.name}"
    text = option.help.replace("|", "\\|")
    also = f" (also `--{'`, `--'.join(option.aliases)}`)" if option.aliases else ""
    return f"| `{flag}` | {f'`{shown}`' if shown else ''} | {text}{also} |"


def _table(columns: Sequence[str], rows: Iterable[str]) -> str:
    return "\n".join((f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows)) + "\n"


def _codes(texts: Iterable[str]) -> str:
    """The texts as Markdown code, with a line break written as ``\\n``."""
    shown = [_cell(text).replace("\n", "\\n") for text in texts]
    return " ".join(f"`` {text} ``" if "`" in text else f"`{text}`" for text in shown)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "exit-codes.md": exit_codes_page,
    "fields.md": fields_page,
    "metrics.md": metrics_page,
    "models.md": models_page,
    "options.md": options_page,
    "parsers.md": parsers_page,
}


def main(folder: Path) -> None:
    """Writes every page into ``folder``."""
    for name, page in PAGES.items():
        (folder / name).write_text(page())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
