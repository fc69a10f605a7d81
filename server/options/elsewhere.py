"""Options of other servers that do not exist here, with the replacement."""

from collections.abc import Mapping
from typing import Final

_NEVER: Final = "leave it out"

_OTHERWISE: Final[Mapping[str, str]] = {
    "allowed-origins": "--cors-origin, once for each",
    "chunked-prefill-size": "--max-prefill-chunk",
    "context-length": "--max-model-len",
    "ctx-size": "--max-model-len",
    "cuda-graph-bs": "--cuda-graph-sizes",
    "disable-cuda-graph": "--no-cuda-graphs",
    "disable-radix-cache": "--no-prefix-cache",
    "disable-uvicorn-access-log": "--no-access-log",
    "download-dir": "the variable HF_HOME",
    "enforce-eager": "--no-cuda-graphs",
    "hicache-size": "--kv-offloading-size",
    "hf-repo": "MODEL, as OWNER/NAME",
    "max-running-requests": "--max-num-seqs",
    "max-seq-len-to-capture": "--cuda-graph-sizes",
    "mem-fraction-static": "--gpu-memory-fraction",
    "middleware": "a proxy in front of the server",
    "model-path": "MODEL, without an option",
    "pp-size": "--pipeline-parallel-size",
    "override-pooler-config": "--pooler",
    "pooler-config": "--pooler",
    "parallel": "--max-num-seqs",
    "dp-size": "--data-parallel-size",
    "swap-space": "--kv-offloading-size",
    "tp-size": "--tensor-parallel-size",
    "uvicorn-log-level": "--log-level",
}
"""Options with another name here."""

_NEEDLESS: Final[Mapping[str, str]] = {
    "async-scheduling": "steps are always planned ahead",
    "chat-template-content-format": "it is read from the template",
    "compilation-config": "kernels are compiled as they are needed",
    "disable-custom-all-reduce": "there is none to turn off",
    "disable-log-requests": "requests are not logged, but for one line each (--access-log)",
    "disable-log-stats": "figures are at /metrics alone",
    "distributed-executor-backend": "workers are processes of the server",
    "enable-auto-tool-choice": "calls are parsed wherever a request brings tools",
    "enable-chunked-prefill": "long prompts always come in chunks",
    "enable-eplb": "experts stay with the worker that loaded them",
    "enable-force-include-usage": "clients ask for it with stream_options",
    "enable-metrics": "/metrics is always there",
    "enable-prompt-tokens-details": "usage always tells the cached tokens",
    "enable-reasoning": "reasoning is parsed wherever the model's template has some",
    "enable-request-id-headers": "every answer has x-request-id",
    "enable-server-load-tracking": "/metrics tells what runs and waits",
    "enable-sleep-mode": "/sleep is open to the admin key",
    "flash-attn": "attention has kernels of its own",
    "gpu-layers": "a model is on one device: --device",
    "guided-decoding-backend": "there is one",
    "jinja": "the model's chat template is always used",
    "n-gpu-layers": "a model is on one device: --device",
    "num-scheduler-steps": "steps are always planned ahead",
    "response-role": "answers are the assistant's",
    "structured-outputs-config": "there is one backend",
    "task": "it follows from the model",
    "runner": "it follows from the model",
    "use-v2-block-manager": "there is one",
    "worker-use-ray": "workers are processes of the server",
}
"""Options that are not needed."""


def advice(name: str) -> str:
    """``: …`` for an option, without its dashes, of vLLM, SGLang or llama.cpp; else ""."""
    if (other := _OTHERWISE.get(name)) is not None:
        return f": here it is {other}"
    positive = name.removeprefix("no-")
    if (why := _NEEDLESS.get(positive)) is not None:
        return f": {why}; {_NEVER}"
    return ""
