"""Options of other servers that do not exist here: what replaces them, which have no effect, which are refused."""

from collections.abc import Mapping
from typing import Final

_NEVER: Final = "leave it out"

_OTHERWISE: Final[Mapping[str, str]] = {
    "allow-credentials": "--cors-origin with an origin's name",
    "allowed-origins": "--cors-origin, once for each",
    "chunked-prefill-size": "--max-prefill-chunk",
    "context-length": "--max-model-len",
    "ctx-size": "--max-model-len",
    "cuda-graph-bs": "--cuda-graph-sizes",
    "download-dir": "the variable HF_HOME",
    "h11-max-header-count": "--max-headers",
    "h11-max-incomplete-event-size": "--max-header-size",
    "hf-repo": "MODEL, as OWNER/NAME",
    "hf-token": "the variable HF_TOKEN",
    "hicache-size": "--kv-offloading-size",
    "log-config-file": "--log-level and --log-format",
    "long-prefill-token-threshold": "--max-prefill-chunk",
    "max-cudagraph-capture-size": "--cuda-graph-sizes",
    "max-running-requests": "--max-num-seqs",
    "max-seq-len-to-capture": "--cuda-graph-sizes",
    "mem-fraction-static": "--gpu-memory-fraction",
    "max-num-active-seqs": "--max-num-seqs",
    "max-num-scheduled-tokens": "--max-num-batched-tokens",
    "middleware": "a proxy in front of the server",
    "mm-processor-cache-gb": "--mm-processor-cache-size, as 4GiB",
    "mm-processor-cache-type": "--mm-processor-cache-size, of one cache",
    "model-path": "MODEL, without an option",
    "num-gpu-blocks-override": "--kv-cache-memory",
    "override-pooler-config": "--pooler",
    "parallel": "--max-num-seqs",
    "pooler-config": "--pooler",
    "pp-size": "--pipeline-parallel-size",
    "profiler-config": "--profiler-folder",
    "dp-size": "--data-parallel-size",
    "spec-method": "--speculative-config",
    "spec-model": "--speculative-config",
    "spec-tokens": "--speculative-config",
    "swap-space": "--kv-offloading-size",
    "tokenizer-mode": "--renderer",
    "tokenizer-revision": "--revision",
    "tp-size": "--tensor-parallel-size",
    "uvicorn-log-level": "--log-level",
    "weight-transfer-config": "--weights-folder",
}
"""Options with another name here."""

_ONE_NODE: Final = "one server is one machine; several stand behind a gateway"
_NO_CODE: Final = "no code of others is loaded"

_ABSENT: Final[Mapping[str, str]] = {
    "chat-template-kwargs": "requests bring them, and --default-chat-template-kwargs has defaults",
    "cpu-offload-gb": "weights are on the device; --kv-offloading-size keeps blocks of the KV cache on the host",
    "data-parallel-address": _ONE_NODE,
    "decode-context-parallel-size": "the KV cache of a sequence is on one worker of each layer",
    "gpu-layers": "a model is on one device: --device",
    "headless": _ONE_NODE,
    "hf-overrides": "a model is what its config.json says",
    "io-processor-plugin": _NO_CODE,
    "model-class-overrides": _NO_CODE,
    "kv-transfer-config": "prompts are computed where they are continued",
    "logits-processors": _NO_CODE,
    "master-addr": _ONE_NODE,
    "n-gpu-layers": "a model is on one device: --device",
    "nnodes": _ONE_NODE,
    "node-rank": _ONE_NODE,
    "reasoning-parser-plugin": _NO_CODE,
    "response-role": "answers are the assistant's",
    "return-tokens-as-token-ids": "requests ask for it",
    "scheduler-cls": _NO_CODE,
    "skip-tokenizer-init": "text is read and written by the server; /inference/v1/generate takes and returns tokens",
    "tokens-only": "text is read and written by the server; /inference/v1/generate takes and returns tokens",
    "video-pruning-rate": "videos keep all their tokens; --media-io-kwargs takes fewer frames",
    "structured-outputs-config": "there is one backend; --json-whitespace says how free its white space is",
    "tool-parser-plugin": _NO_CODE,
    "worker-cls": _NO_CODE,
    "worker-extension-cls": _NO_CODE,
}
"""Options that would change answers, or that ask for what is not there: they are refused."""

HARMLESS_SWITCHES: Final[Mapping[str, str]] = {
    "async-scheduling": "steps are always planned ahead",
    "aggregate-engine-logging": "there is one log",
    "cudagraph-metrics": "/metrics is always there",
    "disable-cascade-attn": "there is none to turn off",
    "disable-chunked-mm-input": "media that span several steps are encoded once",
    "disable-custom-all-reduce": "there is none to turn off",
    "disable-fastapi-docs": "the description at /openapi.json is always there",
    "disable-hybrid-kv-cache-manager": "each kind of layer has its own part of the cache",
    "disable-log-requests": "requests are not logged, but for one line each (--access-log)",
    "disable-log-stats": "figures are at /metrics alone",
    "disable-uvicorn-access-log": "requests are not logged without --access-log",
    "enable-auto-tool-choice": "calls are parsed wherever a request brings tools",
    "enable-chunked-prefill": "long prompts always come in chunks",
    "enable-eplb": "experts stay with the worker that loaded them",
    "enable-flashinfer-autotune": "kernels are tuned by stentor tune",
    "enable-log-outputs": "answers are never logged",
    "enable-log-requests": "--access-log logs a line for each request",
    "enable-log-deltas": "answers are never logged",
    "enable-logging-iteration-details": "figures are at /metrics alone",
    "enable-metrics": "/metrics is always there",
    "enable-prompt-tokens-details": "usage always tells the cached tokens",
    "enable-reasoning": "reasoning is parsed wherever the model's template has some",
    "enable-request-id-headers": "every answer has x-request-id",
    "enable-server-load-tracking": "/load and /metrics tell what runs and waits",
    "enable-sleep-mode": "/sleep is open to the admin key",
    "enable-ssl-refresh": "files of certificates are read again on SIGHUP",
    "enable-tokenizer-info-endpoint": "/tokenizer_info is always there",
    "jinja": "the model's chat template is always used",
    "numa-bind": "threads stay on the cores of one socket",
    "skip-mm-profiling": "the encoder's memory is always measured",
    "kv-cache-metrics": "/metrics is always there",
    "log-error-stack": "an error of the server's own is always logged with its stack",
    "use-fp64-gumbel": "noise is computed in 64 bits",
    "use-tqdm-on-load": "progress is shown on a terminal",
    "use-v2-block-manager": "there is one",
    "worker-use-ray": "workers are processes of the server",
}
"""Switches of other servers that cannot change an answer: they are taken, with a warning that says why they have no
effect."""

HARMLESS_VALUES: Final[Mapping[str, str]] = {
    "all2all-backend": "workers exchange experts' inputs in one way",
    "api-server-count": "one process serves HTTP",
    "attention-backend": "attention has kernels of its own, chosen by the device",
    "chat-template-content-format": "it is read from the template",
    "compilation-config": "kernels are compiled as they are needed",
    "cpu-distributed-timeout-seconds": "a worker that hangs is replaced (--step-timeout)",
    "disable-access-log-for-endpoints": "requests are not logged without --access-log",
    "distributed-executor-backend": "workers are processes of the server",
    "distributed-timeout-seconds": "a worker that hangs is replaced (--step-timeout)",
    "guided-decoding-backend": "there is one",
    "linear-backend": "products have kernels of their own, chosen by the device and stentor tune",
    "max-log-len": "prompts are never logged",
    "max-parallel-loading-workers": "weights are mapped, not copied",
    "mm-encoder-attn-backend": "attention has kernels of its own, chosen by the device",
    "mm-encoder-attn-dtype": "the encoder attends in its own dtype",
    "mm-encoder-tp-mode": "each worker has the whole encoder",
    "num-scheduler-steps": "steps are always planned ahead",
    "optimization-level": "kernels are compiled as they are needed",
    "performance-mode": "batches follow what waits",
    "prefix-caching-hash-algo": "blocks have one kind of hash, a cryptographic one",
    "renderer-num-workers": "a pool of threads renders prompts",
    "runner": "it follows from the model",
    "safetensors-load-strategy": "weights are mapped",
    "scheduling-policy": "priorities of requests always count, and equal ones come in order",
    "show-hidden-metrics-for-version": "no metric is hidden",
    "sse-keep-alive-interval": "a stream that is silent for 15 s gets a comment",
    "stream-interval": "each step is sent as it comes",
    "task": "it follows from the model",
}
"""The same of options with a value."""


def harmless(name: str) -> str | None:
    """Why an option of other servers, or its ``no-`` form, has no effect; None for others."""
    return HARMLESS_VALUES.get(name) or HARMLESS_SWITCHES.get(name.removeprefix("no-"))


def advice(name: str) -> str:
    """``: …`` for an option, without its dashes, of vLLM, SGLang or llama.cpp; else ""."""
    if (other := _OTHERWISE.get(name)) is not None:
        return f": here it is {other}"
    if (absent := _ABSENT.get(name)) is not None:
        return f": there is no such thing here: {absent}"
    if (why := harmless(name)) is not None:
        return f": {why}; {_NEVER}"
    return ""
