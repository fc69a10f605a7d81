"""What is said of models whose layers run several times."""

from pathlib import Path

from stentor.server.options.model_facts import describe_model
from stentor.tests.parity import tiny


def test_a_description_counts_stored_layers_once_and_their_caches_each_time(tmp_path: Path) -> None:
    tiny.make("nanbeige", tmp_path)
    reported = describe_model(tmp_path, ())
    assert "4 of 64 columns, runs of 2 stored ones" in reported
    assert "of 4 layers, full" in reported
