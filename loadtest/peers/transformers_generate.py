"""transformers' ``generate`` in a process of its own: one JSON line in, one JSON line out.

Request ``{"batch": B, "prompt": P, "output": N}``: generates N tokens greedily for B random prompts of P
tokens. Answer ``{"seconds": s}``. The first line written is ``{"ready": true}``.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path, help="a folder, or a .gguf file")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    folder, extra = (
        (args.model.parent, {"gguf_file": args.model.name})
        if args.model.suffix == ".gguf"
        else (
            args.model,
            {},
        )
    )
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, args.dtype), **extra)
    model.eval()
    print(json.dumps({"ready": True}), flush=True)
    generator = torch.Generator().manual_seed(0)
    for line in sys.stdin:
        request = json.loads(line)
        ids = torch.randint(100, 20_000, (request["batch"], request["prompt"]), generator=generator)
        began = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=request["output"],
                max_new_tokens=request["output"],
                pad_token_id=0,
            )
        assert out.shape[1] == request["prompt"] + request["output"]
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    main()
