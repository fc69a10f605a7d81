"""Configuration that crosses a process boundary. Each default lives here once; the CLI reads it."""

import math
from typing import Annotated, Final, Literal

import msgspec

from .flag import Flag

MAX_LEASE_WEIGHT: Final = 1000
WORKER_MODULE: Final = "stentor.engine.worker.process"
"""Entry point of the worker process."""
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
ModelImpl = Literal["auto", "native", "transformers"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
Device = Literal["auto", "cpu", "cuda"]
CacheDType = Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"]
"""``auto``: that of the activations; ``fp8``: float8_e4m3 with a scale a head; ``int8`` has one a token and head."""
StateDType = Literal["auto", "float32", "float16", "bfloat16"]
OnlineQuantization = Literal["none", "fp8", "int8"]
MoEBackend = Literal["auto", "triton", "torch"]
DraftMethod = Literal["ngram", "suffix", "draft_model", "eagle", "eagle3", "dflash", "dspark", "mtp"]
BY_MODELS: Final[frozenset[DraftMethod]] = frozenset({"draft_model", "eagle", "eagle3", "dflash", "dspark", "mtp"})
"""Methods by which a model proposes, or a head."""
MAX_DRAFTS: Final = 64


class SpeculativeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Method and number of draft tokens. The names are vLLM's."""

    method: DraftMethod
    """``ngram``: continuations of the last tokens' earlier matches in the sequence; ``suffix``: also matches in
    finished answers; ``draft_model``: samples of a smaller model; ``eagle``, ``eagle3``, ``dflash``, ``dspark``: of a
    head for the model's hidden states; ``mtp``: of the checkpoint's own head, or of Gemma 4's assistant."""
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_DRAFTS)] = 0
    """Most drafts of a sequence in a step. Only ``suffix`` may omit it; then it is the suffix depth."""
    model: str = ""
    """The draft model, a head or an assistant: named as MODEL is; a local path once located."""
    prompt_lookup_min: Annotated[int, msgspec.Meta(ge=1, le=MAX_DRAFTS)] = 2
    """Length of the shortest match."""
    prompt_lookup_max: Annotated[int, msgspec.Meta(ge=1, le=MAX_DRAFTS)] = 5
    """Length of the longest match that is compared; of several matches the longest is used."""
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] = ()
    """(least, most, drafts): while so many sequences run, the drafts of each in a step, at most."""
    suffix_decoding_max_tree_depth: Annotated[int, msgspec.Meta(ge=1, le=MAX_DRAFTS)] = 24
    """``suffix`` uses this in place of ``prompt_lookup_max``."""
    suffix_decoding_max_cached_requests: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    """Answers that are remembered; 0: none."""
    suffix_decoding_max_spec_factor: Annotated[float, msgspec.Meta(ge=0, le=MAX_DRAFTS)] = 1.0
    """Drafts for each token that is the same, at most."""
    suffix_decoding_min_token_prob: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    """Least fraction of the matches that must continue the same way."""

    def __post_init__(self) -> None:
        """Raises ValueError for contradictory settings."""
        if self.method not in ("dspark", "mtp") and bool(self.model) != (self.method in BY_MODELS):
            expected = f"no model, and it is {self.model}" if self.model else "the model that proposes, as model"
            raise ValueError(f"method {self.method} takes {expected}")
        if not self.num_speculative_tokens:
            if self.method != "suffix":
                raise ValueError(f"num_speculative_tokens is missing; expected 1 to {MAX_DRAFTS}")
            msgspec.structs.force_setattr(self, "num_speculative_tokens", self.suffix_decoding_max_tree_depth)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min is {self.prompt_lookup_min}; expected at most prompt_lookup_max, "
                f"{self.prompt_lookup_max}"
            )
        for least, most, drafts in self.num_speculative_tokens_per_batch_size:
            if not 1 <= least <= most or not 0 <= drafts <= self.num_speculative_tokens:
                raise ValueError(
                    f"num_speculative_tokens_per_batch_size has [{least}, {most}, {drafts}]; expected the least and "
                    f"the most of sequences, from 1, and 0 to {self.num_speculative_tokens} drafts"
                )

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()


class Weights(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Weights of a worker's model. Others have the same architecture."""

    model: str
    """The model's folder or file (:attr:`WorkerConfig.model`)."""
    load_format: LoadFormat = "auto"


class WorkerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a worker needs to load a model and size its KV cache."""

    model: str
    """Local path: a folder or a ``.gguf`` file."""
    is_pooling: bool = False
    """Whether the model computes vectors or scores of prompts instead of tokens."""
    pooler: str = ""
    """A :data:`stentor.engine.model_config.encoders.sentence.PoolingMode` that overrides the model's files."""
    load_format: Annotated[LoadFormat, Flag("format of the weights; dummy draws random ones", group="model")] = "auto"
    profiler_folder: Annotated[
        str,
        Flag("where /stop_profile writes the trace of a worker's steps; by default none is taken", kind="folder_name"),
    ] = ""
    model_impl: Annotated[
        ModelImpl,
        Flag(
            "modelling code: native is this server's, transformers' is slower and supports more "
            "architectures; auto takes native if it supports the model",
            group="model",
        ),
    ] = "auto"
    device: Annotated[Device, Flag("where the model runs")] = "auto"
    tensor_parallel_size: Annotated[
        int,
        Flag(
            "number of workers that split the model's layers, each on a part of the cores or on its own GPU",
            1,
            64,
            aliases=("tp",),
        ),
    ] = 1
    pipeline_parallel_size: Annotated[
        int,
        Flag(
            "number of workers that have some of the model's layers each, one after the other",
            1,
            64,
            aliases=("pp",),
        ),
    ] = 1
    data_parallel_size: Annotated[
        int,
        Flag(
            "number of engines that each run the whole model on workers of their own; a request goes to the one that "
            "has most of its prompt, or to an idle one",
            1,
            64,
            aliases=("dp",),
        ),
    ] = 1
    enable_expert_parallel: Annotated[
        bool,
        Flag(
            "give each of the workers of --tensor-parallel-size whole experts, in place of a part of every expert",
            aliases=("ep",),
        ),
    ] = False
    replica: int = 0
    """Which of these engines it is."""
    rank: int = 0
    """Which of the workers that split the model it is."""
    dtype: Annotated[DType, Flag("dtype of activations and KV cache", kind="dtype")] = "auto"
    max_model_len: Annotated[
        int | None, Flag("longest prompt and output together, in tokens; by default the model's own limit", 1)
    ] = None
    max_num_seqs: Annotated[
        int, Flag("concurrent sequences; 0 means the device's default: 128 on a CPU, 256 on a GPU", 0, 65536)
    ] = 0
    max_num_batched_tokens: Annotated[
        int, Flag("most tokens in one step; 0 means the device's default: 2048", 0, 2**24)
    ] = 0
    max_mixed_prefill_tokens: Annotated[
        int,
        Flag(
            "most prompt tokens in a step with decoding sequences, whatever --target-itl has time for; 0 means the "
            "device's default: 512 on a CPU, 2048 on a GPU",
            0,
            2**24,
        ),
    ] = 0
    max_prefill_chunk: Annotated[
        int,
        Flag(
            "most tokens of one prompt in a step, and on a CPU of all prompts that begin in it; 0 means the "
            "device's default: 512 on a CPU, 2048 on a GPU",
            0,
            2**24,
        ),
    ] = 0
    kv_cache_memory: Annotated[
        int | None,
        Flag(
            "memory for the KV cache; by default chosen from what is free",
            kind="size",
            aliases=("kv-cache-memory-bytes",),
        ),
    ] = None
    kv_offloading_size: Annotated[
        int | None,
        Flag(
            "host memory for blocks of the KV cache that the prefix cache has no more room for: what lies there is "
            "copied back in place of being computed; by default none",
            kind="size",
        ),
    ] = None
    gpu_memory_fraction: Annotated[
        float,
        Flag(
            "fraction of the GPU's memory to use; the KV cache gets what weights, activations and graphs leave of it",
            kind="fraction",
            aliases=("gpu-memory-utilization",),
        ),
    ] = 0.9
    memory_share: float = 1.0
    """This worker's fraction of the memory for workers on a device: of the GPU's fraction, or of a host's KV cache."""
    block_size: Annotated[
        int, Flag("tokens in a block of the KV cache; 0 means the device's default: 16 on a CPU, 64 on a GPU", 0, 1024)
    ] = 0
    kv_cache_dtype: Annotated[
        CacheDType,
        Flag("dtype of the KV cache; auto is that of the activations; fp8 and int8 (CPU only) take one byte"),
    ] = "auto"
    mamba_cache_dtype: Annotated[
        StateDType,
        Flag("dtype of recurrent states; auto is that of the activations for convolutions and float32 for recurrences"),
    ] = "auto"
    mamba_ssm_cache_dtype: Annotated[
        StateDType,
        Flag(
            "dtype of the states of recurrences (Mamba, Mamba-2, delta rule), without convolutions; auto is "
            "--mamba-cache-dtype"
        ),
    ] = "auto"
    quantization: Annotated[
        OnlineQuantization, Flag("quantise weights that are not quantised while they load", kind="quantization")
    ] = "none"
    moe_backend: Annotated[
        MoEBackend,
        Flag(
            "kernels for unquantised experts on a GPU: this server's (triton) or torch's grouped product "
            "(bfloat16, compute capability 9.0 and 10.0); start-up prints the choice and the reason"
        ),
    ] = "auto"
    return_routed_experts: Annotated[
        bool,
        Flag(
            "return the experts of each token in chat and completions (routed_experts); steps run one at a "
            "time, without CUDA graphs",
            name="enable-return-routed-experts",
        ),
    ] = False
    enable_lora: Annotated[
        bool, Flag("serve LoRA adapters of MODEL; requests name an adapter as their model", group="model")
    ] = False
    max_loras: Annotated[
        int, Flag("different adapters in one step; requests for others wait", 1, 1024, group="model")
    ] = 8
    max_lora_rank: Annotated[
        int, Flag("largest rank of an adapter; larger ones are refused", 1, 512, group="model")
    ] = 16
    max_cpu_loras: Annotated[
        int,
        Flag(
            "adapters in memory; unused ones stay until another is needed; 0, or less than --max-loras, means "
            "as many as --max-loras",
            0,
            65536,
            group="model",
        ),
    ] = 0
    cuda_graphs: Annotated[
        bool, Flag("capture steps as CUDA graphs, while serving", opposites=("enforce-eager", "disable-cuda-graph"))
    ] = True
    cuda_graph_sizes: Annotated[
        tuple[int, ...],
        Flag(
            "numbers of decoding sequences to capture, as in 1,8,64; by default chosen up to --max-num-seqs",
            1,
            65536,
            aliases=("cudagraph-capture-sizes",),
        ),
    ] = ()
    cuda_graph_prompt_tokens: Annotated[
        int,
        Flag(
            "most prompt tokens of a captured step, alone or beside decoding sequences; 0 captures decode steps only",
            0,
            8192,
        ),
    ] = 512
    cuda_graph_stall: Annotated[
        float, Flag("share of a busy worker's time that capturing may take, after the first 0.25 s", kind="fraction")
    ] = 0.05
    batch_invariant: Annotated[
        bool, Flag("compute results that do not depend on the batch (on a CPU in float32); slower")
    ] = False
    threads: Annotated[
        int | None,
        Flag("compute threads on the CPU; by default one for each fast core of one socket", 1, 4096),
    ] = None
    cpu_place: int = 0
    """Its part of the host's processors, if there are several; for workers that split a model, the first one's part."""
    cpu_places: int = 1
    """Workers of all models."""
    lease_member: int = 0
    """Which member of the lease it is, where workers of several models share a device."""
    lease_weight: Annotated[
        int,
        Flag(
            "the chat model's weight when models compete for the device's time",
            1,
            MAX_LEASE_WEIGHT,
            name="chat-weight",
            aliases=("share",),
            group="models",
        ),
    ] = 1
    speculative: Annotated[
        SpeculativeConfig | None,
        Flag(
            "speculative decoding, as JSON with vLLM's keys: method is ngram (continuations of earlier "
            "matches in the prompt or answer), suffix (also in earlier answers with the same cache salt), "
            "draft_model (a smaller model with the same tokenizer), eagle, eagle3, dflash or dspark (a head; dspark "
            "also MODEL's own) or mtp (MODEL's own head, or Gemma 4's assistant); num_speculative_tokens; model (of "
            "draft_model, a head and an assistant, named as MODEL is); prompt_lookup_min and prompt_lookup_max; "
            "num_speculative_tokens_per_batch_size; and the four suffix_decoding keys; by default none",
            kind="speculative",
            name="speculative-config",
        ),
    ] = None
    seed: Annotated[int, Flag("seed of dummy weights")] = 0
    language_model_only: bool = False
    """Whether a multimodal model only gets text."""
    prompt_embeds: bool = False
    """Whether prompts may bring embeddings of their tokens."""
    mmproj: str = ""
    """The projector file of a ``.gguf`` file; empty: one beside it that fits."""
    name: str = ""
    """Tells its processes apart in logs, where several models are served."""
    log_level: Annotated[LogLevel, Flag("minimum level of log lines", group="server")] = "info"
    log_format: Annotated[LogFormat, Flag("log lines as text or JSON", group="server")] = "text"

    @property
    def weights(self) -> Weights:
        return Weights(self.model, self.load_format)

    def with_weights(self, weights: Weights) -> "WorkerConfig":
        """That of a worker which loads these."""
        return msgspec.structs.replace(self, model=weights.model, load_format=weights.load_format)

    @property
    def group_size(self) -> int:
        """Workers of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def workers(self) -> int:
        """Workers of all engines that run this model."""
        return self.group_size * self.data_parallel_size

    @property
    def worker_number(self) -> int:
        """Its own among them."""
        return self.replica * self.group_size + self.rank


class StepLimits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Limits of a step, as the worker set them."""

    block_size: int
    """Tokens in a block of the KV cache."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_mixed_prefill_tokens: int
    """Tokens of prompts beside rows that decode, which wait for them."""
    max_prefill_chunk: int
    """Tokens of one prompt."""
    max_encodings: int = 0
    """Media that it encodes; 0: any number."""
    max_mixed_encodings: int = 0
    """The same beside rows that decode, which wait for them; 0: as many as without."""
    max_admitted_tokens: int = 0
    """Tokens of prompts that begin in it; 0: as many as it has room for."""
    max_drafts: int = 0
    """Draft tokens that a decoding row may have behind its own; 0: none are proposed."""


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where events of the prefix cache are published. The names and defaults are vLLM's."""

    enable_kv_cache_events: Literal[True]
    publisher: Literal["zmq"] = "zmq"
    endpoint: str = "tcp://*:5557"
    """Engine N of several adds N to the port. Listened on if it has a wildcard, else connected to."""
    replay_endpoint: str | None = None
    buffer_steps: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 10_000
    """Batches that are kept for replays."""
    hwm: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 100_000
    """Batches that wait for a subscriber; it misses further ones."""
    max_queue_size: int = 100_000
    """Ignored: batches do not wait before they are sent."""
    topic: str = ""

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()


class SchedulerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the scheduler that do not depend on the loaded model."""

    prefix_cache: Annotated[
        bool,
        Flag(
            "reuse the KV cache of equal prompt prefixes",
            aliases=("enable-prefix-caching",),
            opposites=("disable-radix-cache",),
        ),
    ] = True
    kv_events: Annotated[
        KvEventsConfig | None,
        Flag(
            "tell routers over ZeroMQ which tokens the prefix cache holds, as JSON with vLLM's keys; whoever reaches "
            "the endpoint can read the tokens of all requests; by default nobody is told",
            kind="kv_events",
            name="kv-events-config",
        ),
    ] = None
    priority_aging_seconds: Annotated[
        float,
        Flag(
            "waiting time that equals one level of priority; 0 ignores priorities",
            kind="seconds",
            group="overload",
        ),
    ] = 10.0
    target_itl: Annotated[
        float,
        Flag(
            "seconds between two tokens of a sequence to keep to while prompts are computed: a step takes as many "
            "prompt tokens beside decoding sequences as fit, by the times of earlier steps, but prompts get at least "
            "half of the time; 0 leaves it to --max-mixed-prefill-tokens",
            kind="seconds",
        ),
    ] = 0.08


DEFAULT_STEP_SECONDS: Final = 10.0


class RecoveryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for restarting crashed processes, and for detecting a hanging worker."""

    max_worker_deaths: Annotated[
        int,
        Flag(
            "the server ends after this many crashes of the worker in a row, without a completed step or five "
            "minutes of uptime between them; 1 ends it at the first",
            1,
            1000000,
        ),
    ] = 5
    """Crashes that a search for a poisonous request causes do not count."""
    watchdog_seconds: Annotated[
        float,
        Flag(
            "time limit of a step, to which 20 times its predicted time is added; then its worker is "
            "replaced. Values above the default scale the limits of a starting worker too; 0 is no limit",
            kind="seconds",
            name="step-timeout",
        ),
    ] = DEFAULT_STEP_SECONDS
    watchdog_factor: float = 20.0

    max_engine_deaths: Annotated[
        int,
        Flag(
            "the server ends after this many crashes of the engine in a row, without progress or five minutes "
            "of uptime between them; 1 ends it at the first",
            1,
            1000000,
        ),
    ] = 5
    """Also the limit of consecutive requests that crashed an engine; crashes by the search for one do not count."""

    @property
    def start_patience(self) -> float:
        """Factor of the limits within which a worker must start: a machine that is slow at steps is at starting."""
        return max(1.0, self.watchdog_seconds / DEFAULT_STEP_SECONDS) if self.watchdog_seconds else math.inf


def process_name(process: str, model: str) -> str:
    """The process's name in logs."""
    return f"{model} {process}" if model else process


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker: WorkerConfig
    scheduler: SchedulerConfig = SchedulerConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    worker_module: str = WORKER_MODULE
    """Benchmarks put one there that computes nothing."""

    @property
    def replicas(self) -> list["EngineConfig"]:
        """Of each engine that runs the model."""
        own, count = self.worker, self.worker.data_parallel_size
        if count == 1:
            return [self]
        names = (f"{own.name} replica {number}".strip() for number in range(count))
        workers = [msgspec.structs.replace(own, replica=number, name=name) for number, name in enumerate(names)]
        return [msgspec.structs.replace(self, worker=worker) for worker in workers]
