"""sentence-transformers in its own environment: one JSON line in, one JSON line out. Imports nothing of ours.

Request ``{"texts": [...], "batch": n}``: encodes them, ``n`` at a time. Answer ``{"seconds": s, "vectors": "base64 of
float32, one after the other"}``. The first line written is ``{"ready": true, "version": v}``.
"""

import argparse
import base64
import json
import sys
import time

import sentence_transformers  # type: ignore[import-not-found, unused-ignore]
import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = sentence_transformers.SentenceTransformer(
        args.model, device="cpu", model_kwargs={"dtype": getattr(torch, args.dtype)}
    )
    versions = f"{sentence_transformers.__version__}, torch {torch.__version__}"
    print(json.dumps({"ready": True, "version": versions}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        vectors = model.encode(request["texts"], batch_size=request["batch"], show_progress_bar=False)
        seconds = time.perf_counter() - began
        data = base64.b64encode(vectors.astype("float32").tobytes()).decode()
        print(json.dumps({"seconds": seconds, "vectors": data}), flush=True)


if __name__ == "__main__":
    main()
