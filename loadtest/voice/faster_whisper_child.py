"""faster-whisper in its own environment: one JSON line in, one JSON line out. Imports nothing of ours.

Request ``{"files": [...], "parallel": n}``: transcribes each, ``n`` at a time. Answer ``{"seconds": s, "texts":
[...]}``. The first line written is ``{"ready": true, "version": v}``.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import faster_whisper  # type: ignore[import-not-found, unused-ignore]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a folder with CTranslate2's files")
    parser.add_argument("--compute-type", default="int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    model = faster_whisper.WhisperModel(
        args.model,
        device="cpu",
        compute_type=args.compute_type,
        cpu_threads=args.threads,
        num_workers=args.workers,
        local_files_only=True,
    )

    def transcribe(file: str) -> str:
        segments, _ = model.transcribe(file, language="en", beam_size=1, best_of=1)
        return "".join(segment.text for segment in segments).strip()

    print(json.dumps({"ready": True, "version": faster_whisper.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        with ThreadPoolExecutor(request["parallel"]) as threads:
            texts = list(threads.map(transcribe, request["files"]))
        print(json.dumps({"seconds": time.perf_counter() - began, "texts": texts}), flush=True)


if __name__ == "__main__":
    main()
