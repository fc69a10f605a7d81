"""Plays random combinations, and makes those that differ smaller: ``python -m stentor.tests.engine.combinations``."""

import argparse
import collections
import contextlib
import io
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from stentor.tests.engine.combinations.cases import Case, draw_asks, draw_events, draw_setting
from stentor.tests.engine.combinations.checkpoints import SOURCES
from stentor.tests.engine.combinations.playing import Models, play
from stentor.tests.engine.combinations.shrinking import TRIES, shrink


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=3, help="times that requests are drawn for a set-up")
    parser.add_argument("--models", default="", help="names with commas; by default all")
    parser.add_argument("--most-asks", type=int, default=16)
    parser.add_argument("--split", type=float, default=0.0, help="how often several workers have a model")
    parser.add_argument("--folder", default="", help="where checkpoints are kept")
    parser.add_argument("--tries", type=int, default=TRIES, help="cases that are played to make one smaller")
    parser.add_argument("--most-problems", type=int, default=20)
    given = parser.parse_args(arguments)
    models = Models(Path(given.folder or tempfile.mkdtemp()))
    names = given.models.split(",") if given.models else list(SOURCES)
    until = time.monotonic() + given.seconds
    counts: collections.Counter[str] = collections.Counter()
    refusals: collections.Counter[str] = collections.Counter()
    seed = given.start
    while time.monotonic() < until and counts["differing"] < given.most_problems:
        rng = random.Random(seed)
        setting = draw_setting(rng, names, given.split)
        for number in range(given.rounds):
            case = Case(setting=setting, asks=draw_asks(rng, setting, given.most_asks), events=draw_events(rng))
            with contextlib.redirect_stderr(io.StringIO()):
                report = play(case, models)
            if report.refused:
                counts["refused"] += 1
                refusals[report.refused] += 1
                break
            counts["played"] += 1
            counts.update(report.counts)
            if report.problems:
                counts["differing"] += 1
                print(f"seed {seed} round {number}: {report.problems[0][:600]}", flush=True)
                small, told = shrink(case, models, given.tries)
                print(f"  {small}\n  {told.problems[0][:1200]}", flush=True)
                break
        seed += 1
        if seed % 20 == 0:
            print(f"{seed - given.start} set-ups: {dict(counts)}", flush=True)
    print(f"seeds {given.start} to {seed - 1}: {dict(counts)}")
    for why, count in refusals.most_common():
        print(f"  refused {count} times: {why}")
    return 1 if counts["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
