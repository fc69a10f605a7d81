"""A library in its own environment: one JSON line in, one JSON line out. Imports nothing of ours.

Request ``{"load": [...], "size": n}``, answer ``{"seconds": s, "made": [...]}``: of faster-whisper the texts of sound
files, ``n`` at a time; of sentence-transformers the vectors of texts, ``n`` in a batch, as base64 of float32. The first
line written is ``{"version": v}``.
"""

import argparse
import base64
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Work = Callable[[list[str], int], list[Any]]


def faster_whisper(args: argparse.Namespace) -> tuple[str, Work]:
    import faster_whisper as library  # type: ignore[import-not-found, unused-ignore]

    model = library.WhisperModel(
        args.model,
        device="cpu",
        compute_type=args.dtype,
        cpu_threads=args.threads,
        num_workers=args.workers,
        local_files_only=True,
    )

    def transcribe(file: str) -> str:
        segments, _ = model.transcribe(file, language="en", beam_size=1, best_of=1)
        return "".join(segment.text for segment in segments).strip()

    def work(load: list[str], size: int) -> list[Any]:
        with ThreadPoolExecutor(size) as threads:
            return list(threads.map(transcribe, load))

    return library.__version__, work


def sentence_transformers(args: argparse.Namespace) -> tuple[str, Work]:
    import sentence_transformers as library  # type: ignore[import-not-found, unused-ignore]
    import torch

    torch.set_num_threads(args.threads)
    model = library.SentenceTransformer(args.model, device="cpu", model_kwargs={"dtype": getattr(torch, args.dtype)})

    def work(load: list[str], size: int) -> list[Any]:
        return list(model.encode(load, batch_size=size, show_progress_bar=False))

    return f"{library.__version__}, torch {torch.__version__}", work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["faster-whisper", "sentence-transformers"])
    parser.add_argument("model", help="a folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    version, work = (faster_whisper if args.library == "faster-whisper" else sentence_transformers)(args)
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        made = work(request["load"], request["size"])
        seconds = time.perf_counter() - began
        if args.library == "sentence-transformers":
            made = [base64.b64encode(vector.astype("float32").tobytes()).decode() for vector in made]
        print(json.dumps({"seconds": seconds, "made": made}), flush=True)


if __name__ == "__main__":
    main()
