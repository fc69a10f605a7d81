"""Configuration that crosses a process boundary. Each default lives here once; the CLI reads it."""

from typing import Literal

import msgspec

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Device = Literal["auto", "cpu", "cuda"]
CacheDType = Literal["auto", "float32", "bfloat16", "float16", "fp8"]
"""``auto`` is the dtype of the activations; ``fp8`` is float8_e4m3 with a scale a head."""
OnlineQuantization = Literal["none", "fp8", "int8"]


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a worker needs to load a model and size its KV cache."""

    model: str
    """Local path: a folder or a ``.gguf`` file."""
    pools: bool = False
    """Whether the model is asked for vectors or scores of its prompts, not for tokens."""
    pooler: str = ""
    """A :data:`stentor.engine.model_config.sentence_config.PoolingMode` in place of what the model's files say."""
    load_format: LoadFormat = "auto"
    device: Device = "auto"
    dtype: DType = "auto"
    max_model_len: int | None = None
    """Longest sequence, prompt and output; None takes the model's own limit."""
    max_num_seqs: int = 0
    """Here and in the next ones 0 takes what suits the device."""
    max_num_batched_tokens: int = 0
    max_mixed_prefill_tokens: int = 0
    max_prefill_chunk: int = 0
    kv_cache_memory: int | None = None
    """Bytes for KV blocks; None lets the worker choose."""
    gpu_memory_fraction: float = 0.9
    """Share of a GPU's memory that the workers on it may take in all, where ``kv_cache_memory`` does not say."""
    memory_share: float = 1.0
    """This worker's part of what the workers on a device may take: of the GPU's fraction, or of a host's KV cache."""
    block_size: int = 0
    kv_cache_dtype: CacheDType = "auto"
    quantization: OnlineQuantization = "none"
    """Quantises the weights of an unquantised checkpoint while they load."""
    cuda_graphs: bool = True
    cuda_graph_sizes: tuple[int, ...] = ()
    """Rows of the decode steps that are captured; empty lets the worker choose."""
    cuda_graph_stall: float = 0.05
    """Share of a busy worker's time that capturing may take."""
    batch_invariant: bool = False
    threads: int | None = None
    """Compute threads on the CPU; None takes the cores this process may use."""
    lease_member: int = 0
    """Which member of the lease it is, where workers of several models share a device."""
    lease_weight: int = 1
    """Its part of the device's time, against those of the others, while all have work."""
    seed: int = 0
    """Seeds dummy weights."""
    name: str = ""
    """Tells its processes apart in logs, where several models are served."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"


class StepLimits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a step may hold at most, as the worker settled it."""

    block_size: int
    """Tokens in a block of the KV cache."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_mixed_prefill_tokens: int
    """Tokens of prompts beside rows that decode, which wait for them."""
    max_prefill_chunk: int
    """Tokens of one prompt."""
    max_encodings: int = 0
    """Windows of audio to be encoded, by a transcription model."""
    max_mixed_encodings: int = 0
    """Those beside rows that decode, which wait for them."""


class SchedulerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the scheduler that do not depend on the loaded model."""

    prefix_cache: bool = True
    priority_aging_seconds: float = 10.0
    """A waiting request gains one priority level for each such span."""


class RecoveryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often what died is started again, and when a worker is taken to hang."""

    max_worker_deaths: int = 5
    """Deaths of the worker in a row, with no completed step between them, of which the last is not recovered from.
    Those that a search for a poisonous request costs do not count."""
    watchdog_seconds: float = 10.0
    """A step may take this long and :attr:`watchdog_factor` times what is predicted for it; 0: for ever."""
    watchdog_factor: float = 20.0

    max_engine_deaths: int = 5
    """Deaths of the engine in a row, without progress of those who were in flight, of which the last is not recovered
    from; and as many requests in a row that were to blame. Deaths that the search for one costs do not count."""


def process_name(process: str, model: str) -> str:
    """What a process is called in logs."""
    return f"{model} {process}" if model else process


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker: WorkerConfig
    scheduler: SchedulerConfig = SchedulerConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    worker_module: str = "stentor.engine.worker.process"
    """Entry point of the worker process; benchmarks put one there that computes nothing."""
