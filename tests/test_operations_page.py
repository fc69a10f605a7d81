"""OPERATIONS.md and SECURITY.md against the program: what they list is what there is."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from stentor.server.common import exit_codes
from stentor.server.middleware.auth import OPEN_PATHS
from stentor.server.observability.processes import ROLES
from stentor.server.options.option import OPTIONS
from stentor.server.pooling.metrics import EmbeddingMetrics
from stentor.server.tts.metrics import SpeechMetrics
from stentor.tests.fakes import fake_state

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "OPERATIONS.md").read_text()
SECURITY = (ROOT / "SECURITY.md").read_text()
README = (ROOT / "README.md").read_text()
OPTIONS_PAGE = (ROOT / "docs" / "reference" / "options.md").read_text()
LEVELS = {"warning": "warning", "error": "error", "exception": "error", "critical": "critical"}
CALLED = re.compile(rf"\.\s*(?:log|{'|'.join(LEVELS)})\b")
"""Only files with such a word are parsed."""
LIMITS = ("limits", "overload", "recovery")
"""Groups of options that the table of limits must have all of."""


def _section(title: str, page: str = PAGE) -> str:
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def _rows(title: str) -> list[list[str]]:
    """The cells of every row of a section's tables but the heads."""
    lines = [line for line in _section(title).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r" \|(?= |$)", line.removeprefix("|"))][:-1] for line in lines]


def _bare(cell: str) -> str:
    return cell.strip("`")


# ---- log lines


def _is_logger(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ("logging", "log", "_log") or name.endswith("logger")


@cache
def _logged() -> tuple[tuple[str, str, str], ...]:
    """Where, level and format of everything of the level of a warning and above."""
    return tuple(_log_calls())


def _log_calls() -> Iterator[tuple[str, str, str]]:
    for folder in ("server", "engine", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if CALLED.search(text) else ():
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if not _is_logger(node.func.value):
                    continue
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert node.func.attr != "log", f"{where}: a level that is not known here"
                if node.func.attr in LEVELS:
                    format = node.args[0]
                    assert isinstance(format, ast.Constant), f"{where}: the format must be a plain text, for the page"
                    assert isinstance(format.value, str)
                    assert re.search(r"[a-z]{3}", format.value), f"{where}: a format must say something"
                    yield where, LEVELS[node.func.attr], format.value


def test_every_warning_and_error_that_can_be_logged_is_explained() -> None:
    listed = {(_bare(level), _bare(text)) for text, level, _ in _rows("Log lines")}
    missing = [line for line in _logged() if line[1:] not in listed]
    assert not missing, "these have no row in OPERATIONS.md"


def test_no_line_is_explained_that_nobody_logs() -> None:
    logged = {line[1:] for line in _logged()}
    assert len(logged) > 10
    assert {(_bare(level), _bare(text)) for text, level, _ in _rows("Log lines")} - logged == set()


# ---- metrics


def _families() -> Iterator[Metric]:
    registry = fake_state().metrics.registry
    SpeechMetrics(registry, "voice")
    EmbeddingMetrics(registry, "vectors")
    for family in registry.collect():
        if not family.name.endswith("_created"):
            yield family


def test_every_metric_is_listed_with_its_kind_and_labels_and_no_other_is() -> None:
    there = {}
    for family in _families():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"model_name", "le"}
        there[name] = (family.type, labels)
    listed = {_bare(name): (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in _rows("Metrics")}
    assert listed == there


def test_the_reasons_of_a_label_are_listed() -> None:
    rows = {_bare(name): text for name, _, _, text in _rows("Metrics")}
    for family in _families():
        for label in ("reason", "finished_reason"):
            values = {sample.labels[label] for sample in family.samples if label in sample.labels}
            text = rows.get(f"{family.name}_total", "")
            assert {value for value in values if f"`{value}`" not in text} == set(), family.name
    assert {role for role in ("server", "helper", *ROLES.values()) if f"`{role}`" not in _section("Metrics")} == set()


# ---- limits, exit codes, probes


def test_the_limits_are_all_there_with_the_defaults_of_the_options() -> None:
    defaults = dict(re.findall(r"^\| `--(?:\[no-\])?([\w-]+)` \| (.*?) \|", OPTIONS_PAGE, flags=re.MULTILINE))
    listed = {_bare(name).removeprefix("--").removeprefix("[no-]"): default for name, default, _ in _rows("Limits")}
    assert listed == {name: defaults[name].strip() for name in listed}
    wanted = {option.name for option in OPTIONS if option.group in LIMITS}
    assert wanted - listed.keys() == set()


def test_the_exit_codes_are_those_of_the_program() -> None:
    documented = set(re.findall(r"^(\d+) ", exit_codes.__doc__ or "", flags=re.MULTILINE))
    assert {_bare(code) for code, _ in _rows("Exit codes")} == documented


def test_open_routes_are_named_where_keys_are_explained() -> None:
    for path in {"/page/" if path.startswith("/page/") else path for path in OPEN_PATHS}:
        assert f"`{path}`" in SECURITY
        assert f"`{path}`" in PAGE


@pytest.mark.parametrize("page", [PAGE, SECURITY], ids=["OPERATIONS.md", "SECURITY.md"])
def test_options_that_are_named_exist_and_links_lead_somewhere(page: str) -> None:
    known = {spelling for option in OPTIONS for spelling in option.spellings} | {"config"}
    named = set(re.findall(r"`--(?:\[no-\])?([a-z][\w-]+)", re.sub(r"```.*?```", "", page, flags=re.DOTALL)))
    assert named - known == set()
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]*)?\)", page):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_variables_in_examples_are_options() -> None:
    variables = {option.variable for option in OPTIONS} | {"STENTOR_CONFIG"}
    assert set(re.findall(r"STENTOR_\w+", PAGE + SECURITY)) - variables == set()


def test_the_readme_leads_to_both_pages() -> None:
    assert "(OPERATIONS.md)" in README
    assert "(SECURITY.md)" in README
