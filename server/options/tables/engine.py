"""What the engine and its workers do."""

from typing import Final, get_args

from stentor.protocols.ipc.config import CacheDType, Device, DType, OnlineQuantization

from .. import kinds
from ..option import INT64, Option

OPTIONS: Final = (
    Option("device", "engine.worker.device", kinds.choice(get_args(Device)), "where the model runs", "engine"),
    Option("dtype", "engine.worker.dtype", kinds.choice(get_args(DType)), "type of activations and KV cache", "engine"),
    Option(
        "quantization",
        "engine.worker.quantization",
        kinds.choice(get_args(OnlineQuantization)),
        "quantise the weights of an unquantised model while they load",
        "engine",
    ),
    Option(
        "max-model-len",
        "engine.worker.max_model_len",
        kinds.integer(1, INT64),
        "longest prompt and output together, in tokens; otherwise the model's own limit",
        "engine",
    ),
    Option(
        "max-num-seqs",
        "engine.worker.max_num_seqs",
        kinds.integer(0, 65536),
        "sequences that run at once; 0 takes what suits the device: 128 on a CPU, 256 on a GPU",
        "engine",
    ),
    Option(
        "max-num-batched-tokens",
        "engine.worker.max_num_batched_tokens",
        kinds.integer(0, 2**24),
        "tokens that one step computes at most; 0 takes what suits the device: 2048",
        "engine",
    ),
    Option(
        "max-mixed-prefill-tokens",
        "engine.worker.max_mixed_prefill_tokens",
        kinds.integer(0, 2**24),
        "tokens of prompts that a step takes beside rows that decode, which wait for them; 0 takes what suits the "
        "device: 96 on a CPU, 2048 on a GPU. A burst of prompts is not held back",
        "engine",
    ),
    Option(
        "max-prefill-chunk",
        "engine.worker.max_prefill_chunk",
        kinds.integer(0, 2**24),
        "tokens of one prompt that a step takes; 0 takes what suits the device: 512 on a CPU, 2048 on a GPU",
        "engine",
    ),
    Option(
        "kv-cache-memory",
        "engine.worker.kv_cache_memory",
        kinds.size(),
        "memory for the KV cache; otherwise chosen from what is free",
        "engine",
    ),
    Option(
        "kv-cache-dtype",
        "engine.worker.kv_cache_dtype",
        kinds.choice(get_args(CacheDType)),
        "type of the KV cache; auto is that of the activations, fp8 halves it",
        "engine",
    ),
    Option(
        "gpu-memory-fraction",
        "engine.worker.gpu_memory_fraction",
        kinds.fraction(),
        "share of the GPU's memory to take in all: weights, activations, graphs, and the KV cache gets what is left",
        "engine",
        aliases=("gpu-memory-utilization",),
    ),
    Option(
        "block-size",
        "engine.worker.block_size",
        kinds.integer(0, 1024),
        "tokens in a block of the KV cache; 0 takes what suits the device: 16 on a CPU, 64 on a GPU",
        "engine",
    ),
    Option(
        "prefix-cache",
        "engine.scheduler.prefix_cache",
        kinds.switch(),
        "share the KV cache of equal prompt beginnings",
        "engine",
        aliases=("enable-prefix-caching",),
    ),
    Option(
        "cuda-graphs",
        "engine.worker.cuda_graphs",
        kinds.switch(),
        "capture decode steps as CUDA graphs, while serving",
        "engine",
    ),
    Option(
        "cuda-graph-sizes",
        "engine.worker.cuda_graph_sizes",
        kinds.integers(1, 65536),
        "rows of the decode steps to capture, as in 1,8,64; otherwise chosen up to --max-num-seqs",
        "engine",
    ),
    Option(
        "cuda-graph-stall",
        "engine.worker.cuda_graph_stall",
        kinds.fraction(),
        "share of a busy worker's time that capturing may take",
        "engine",
    ),
    Option(
        "batch-invariant",
        "engine.worker.batch_invariant",
        kinds.switch(),
        "the same numbers whatever else is in the batch (float32 on the CPU); slower",
        "engine",
    ),
    Option(
        "threads",
        "engine.worker.threads",
        kinds.integer(1, 4096),
        "compute threads on the CPU; otherwise one for each core that may be used",
        "engine",
    ),
    Option("seed", "engine.worker.seed", kinds.integer(0, INT64), "seed of made-up weights", "engine"),
)
