"""transformers from pictures to text, as one would write it: a JSON line in, a JSON line out over a socket that is
inherited. Imports nothing of ours.

Request ``{"pictures": [...], "said": text, "tokens": n}``: pictures are base64, each in a conversation of its own with
the same text, all as one batch. Answer ``{"ttft": s, "seconds": s, "prompt_tokens": n, "tokens": n}``; tokens are those
of each conversation.
"""

import argparse
import base64
import io
import json
import socket
import time
from typing import Any

import torch
import transformers as untyped_transformers
from PIL import Image

transformers: Any = untyped_transformers


class Clock(transformers.generation.BaseStreamer):  # type: ignore[misc]
    """When tokens came, by ``time.perf_counter()``: first those of the prompts, then one of each at a time."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """All have come."""


def answer(model: Any, processor: Any, pictures: list[str], said: str, tokens: int) -> dict[str, float]:
    began, clock = time.perf_counter(), Clock()
    content = [{"type": "image"}, {"type": "text", "text": said}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    images = [[Image.open(io.BytesIO(base64.b64decode(picture)))] for picture in pictures]
    inputs = processor(text=[text] * len(images), images=images, return_tensors="pt")
    inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    with torch.inference_mode():
        made = model.generate(
            **inputs, do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens, streamer=clock, use_cache=True
        )
    count = inputs["input_ids"].shape[1]
    return {
        "ttft": clock.times[1] - began,
        "seconds": clock.times[-1] - began,
        "prompt_tokens": count,
        "tokens": made.shape[1] - count,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a folder; weights are made up")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--socket", type=int, required=True, help="its descriptor")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = transformers.AutoConfig.from_pretrained(args.model)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=getattr(torch, args.dtype)).eval()
    images = transformers.AutoImageProcessor.from_pretrained(args.model, backend="pil")
    processor = transformers.AutoProcessor.from_pretrained(args.model, image_processor=images)
    with socket.socket(fileno=args.socket) as connection, connection.makefile("rw") as lines:
        for line in lines:
            print(json.dumps(answer(model, processor, **json.loads(line))), file=lines, flush=True)


if __name__ == "__main__":
    main()
