"""docs/operate against the program: what the pages list is what there is."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from stentor.server.main.reference_pages import metric_families, metric_name
from stentor.server.middleware.auth import PROBES
from stentor.server.observability.processes import ROLES
from stentor.server.options.option import OPTIONS
from stentor.server.options.reading import SERVICE_LINK
from stentor.server.web import PATHS
from stentor.tests.fakes import fake_state

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "operate"
PAGES = {path.name: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
OPTIONS_PAGE = (ROOT / "docs" / "reference" / "options.md").read_text()
LEVELS = {"warning": "warning", "error": "error", "exception": "error", "critical": "critical"}
LOGGING = re.compile(rf"(?:log|logging|logger)\s*\.\s*(?:log|{'|'.join(LEVELS)})\b")
LIMITS = ("limits", "overload", "recovery")
"""Groups of options that the table of limits must have all of."""


def _rows(page: str) -> list[list[str]]:
    """The cells of every row of a page's tables whose first cell is code."""
    lines = [line for line in PAGES[page].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r" \|(?= |$)", line.removeprefix("|"))][:-1] for line in lines]


def _bare(cell: str) -> str:
    return cell.strip("`")


# ---- log lines


def _is_logger(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ("logging", "log", "_log") or name.endswith("logger")


@cache
def _logged() -> list[tuple[str, str, str]]:
    """Where, level and format of everything of the level of a warning and above."""
    found = []
    for folder in ("server", "engine", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if not LOGGING.search(text):
                continue  # parsing all of them takes 2 s
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if not _is_logger(node.func.value):
                    continue
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert node.func.attr != "log", f"{where}: a level that is not known here"
                if node.func.attr in LEVELS:
                    said = node.args[0]
                    assert isinstance(said, ast.Constant), f"{where}: the format must be a plain text, for the page"
                    assert isinstance(said.value, str)
                    assert re.search(r"[a-z]{3}", said.value), f"{where}: a format must say something"
                    found.append((where, LEVELS[node.func.attr], said.value))
    return found


def test_every_warning_and_error_that_can_be_logged_is_explained() -> None:
    listed = {(_bare(level), _bare(text)) for text, level, _ in _rows("logs.md")}
    missing = [line for line in _logged() if line[1:] not in listed]
    assert not missing, "these have no row in docs/operate/logs.md"


def test_no_line_is_explained_that_nobody_logs() -> None:
    logged = {line[1:] for line in _logged()}
    assert len(logged) > 10
    assert {(_bare(level), _bare(text)) for text, level, _ in _rows("logs.md")} - logged == set()


# ---- metrics


def _series() -> Iterator[tuple[str, Metric]]:
    """Every name under which Prometheus stores something, with the metric that it is of."""
    for family in metric_families():
        endings = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        for ending in endings:
            yield f"{metric_name(family)}{ending}", family


def test_the_generated_page_of_metrics_is_made_of_what_a_server_has() -> None:
    there = {
        metric_name(family): (family.type, family.documentation)
        for family in fake_state().metrics.registry.collect()
        if not family.name.endswith("_created")
    }
    reported = {metric_name(family): (family.type, family.documentation) for family in metric_families()}
    assert there.items() <= reported.items()
    assert all(
        name.startswith(("stentor:speech_", "stentor:embedding_", "stentor:mm_cache_", "stentor:lora_"))
        for name in reported.keys() - there.keys()
    )


@pytest.mark.parametrize("page", [*PAGES])
def test_every_metric_that_a_page_names_exists(page: str) -> None:
    known = {name for name, _ in _series()} | {metric_name(family) for family in metric_families()}
    assert set(re.findall(r"stentor:\w+", PAGES[page])) - known == set()


def test_every_metric_and_label_of_the_dashboard_exists() -> None:
    series = dict(_series())
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 20
    for expression in expressions:
        (names, labels) = (re.findall(r"stentor:\w+", expression), re.findall(r" by \(([^)]*)\)", expression))
        assert names, expression
        for name in names:
            assert name in series, expression
            known = {label for sample in series[name].samples for label in sample.labels}
            assert {label.strip() for group in labels for label in group.split(",")} <= known | {"le"}, expression
    variables = [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]
    assert {name for text in variables for name in re.findall(r"stentor:\w+", text)} <= series.keys()


def test_the_values_of_labels_are_explained() -> None:
    labels = PAGES["metrics.md"][PAGES["metrics.md"].index("## Labels") :]
    explained = ("reason", "finished_reason", "outcome", "pass")
    for family in metric_families():
        values = {sample.labels[label] for sample in family.samples for label in explained if label in sample.labels}
        assert {value for value in values if f"`{value}`" not in labels} == set(), family.name
    assert {role for role in ("server", "helper", *ROLES.values()) if f"`{role}`" not in labels} == set()


# ---- limits, statuses, probes, options


def _defaults() -> dict[str, str]:
    rows = re.findall(r"^\| `--(?:\[no-\])?([\w-]+)` \| (.*?) \|", OPTIONS_PAGE, flags=re.MULTILINE)
    return {name: default.strip() for name, default in rows}


def _listed(page: str) -> dict[str, str]:
    rows = [row for row in _rows(page) if row[0].startswith("`--") and len(row) == 3]
    return {_bare(name).removeprefix("--").split(" ")[0]: default for name, default, _ in rows}


def test_the_limits_are_all_there_with_the_defaults_of_the_options() -> None:
    listed, defaults = _listed("limits.md"), _defaults()
    assert listed == {name: defaults[name] for name in listed}
    wanted = {option.name for option in OPTIONS if option.group in LIMITS}
    assert wanted - listed.keys() == set()


def test_the_bounds_of_the_store_have_the_defaults_of_the_options() -> None:
    listed, defaults = _listed("store.md"), _defaults()
    assert listed == {name: defaults[name] for name in listed}
    assert {option.name for option in OPTIONS if option.group == "store"} == listed.keys()


def test_the_codes_of_statuses_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| (?:4|5)\d\d \| (.*?) \|", PAGES["limits.md"], flags=re.MULTILINE)
    codes = {code for cell in rows for code in re.findall(r"`(\w+)`", cell)}
    assert len(codes) > 25
    sources = [path.read_text() for folder in ("server", "protocols") for path in (ROOT / folder).rglob("*.py")]
    assert {code for code in codes if not any(f'"{code}"' in source for source in sources)} == set()


def test_open_routes_are_named_where_keys_are_explained() -> None:
    for path in {"/page/" if path.startswith("/page/") else path for path in (*PROBES, *PATHS)}:
        assert f"`{path}`" in PAGES["security.md"]


@pytest.mark.parametrize("page", [*PAGES])
def test_variables_in_examples_are_options(page: str) -> None:
    variables = {option.variable for option in OPTIONS} | {"STENTOR_CONFIG"}
    named = set(re.findall(r"STENTOR_[A-Z_0-9]*[A-Z]", PAGES[page]))
    assert {name for name in named if name not in variables and not SERVICE_LINK.fullmatch(name)} == set()


def test_the_readme_leads_to_operation_and_security() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "(docs/operate/deployment.md)" in readme
    assert "(SECURITY.md)" in readme
