"""Encoders against transformers, on tiny random models of every family, in float32."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace
from safetensors.torch import load_file

from stentor.engine.layers.forward_batch import ForwardBatch
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.varlen_batch import VarlenBatch
from stentor.engine.loading.safetensors_index import read_json
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.encoders.hf import encoder_config_from_hf
from stentor.engine.models.encoder import Encoder
from stentor.engine.models.encoder_names import canonical
from stentor.kernels import native
from stentor.kernels.linear_packed import PLAIN

library: Any = transformers  # whose types know no further fields

SIZES: dict[str, Any] = {"vocab_size": 130, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
BERT: dict[str, Any] = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 96}
LENGTHS = (1, 17, 5, 90, 2, 33)

MODELS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**BERT), add_pooling_layer=False),
    "bert with tanh": lambda: transformers.BertModel(
        transformers.BertConfig(**BERT, hidden_act="gelu_new", layer_norm_eps=1e-6), add_pooling_layer=False
    ),
    "electra": lambda: library.ElectraModel(library.ElectraConfig(**BERT, embedding_size=16)),
    "electra of one size": lambda: library.ElectraModel(library.ElectraConfig(**BERT, embedding_size=32)),
    "ernie": lambda: library.ErnieModel(library.ErnieConfig(**BERT), add_pooling_layer=False),
    "ernie with tasks": lambda: library.ErnieModel(
        library.ErnieConfig(**BERT, use_task_id=True), add_pooling_layer=False
    ),
    "data2vec": lambda: library.Data2VecTextModel(
        library.Data2VecTextConfig(**BERT, type_vocab_size=1, pad_token_id=1), add_pooling_layer=False
    ),
    "roberta": lambda: transformers.RobertaModel(
        transformers.RobertaConfig(**BERT, type_vocab_size=1, pad_token_id=1), add_pooling_layer=False
    ),
    "xlm-roberta": lambda: transformers.XLMRobertaModel(
        transformers.XLMRobertaConfig(**BERT, type_vocab_size=1, pad_token_id=1), add_pooling_layer=False
    ),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(
            vocab_size=130, dim=32, n_layers=3, n_heads=4, hidden_dim=48, max_position_embeddings=96
        )
    ),
    "mpnet": lambda: transformers.MPNetModel(transformers.MPNetConfig(**BERT), add_pooling_layer=False),
    "modernbert": lambda: transformers.ModernBertModel(
        transformers.ModernBertConfig(
            **BERT, local_attention=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2
        )
    ),
    "nomic_bert": lambda: transformers.NomicBertModel(transformers.NomicBertConfig(**BERT)),
    "gte": lambda: transformers.GteModel(transformers.GteConfig(**BERT)),
    "gte without types": lambda: transformers.GteModel(transformers.GteConfig(**BERT, type_vocab_size=0)),
    "jina_embeddings_v3": lambda: transformers.JinaEmbeddingsV3Model(
        transformers.JinaEmbeddingsV3Config(**BERT), add_pooling_layer=False
    ),
    "bert that attends back": lambda: transformers.BertModel(
        transformers.BertConfig(**BERT, is_decoder=True), add_pooling_layer=False
    ),
    "xlm-roberta that attends back": lambda: transformers.XLMRobertaModel(
        transformers.XLMRobertaConfig(**BERT, type_vocab_size=1, pad_token_id=1, is_decoder=True),
        add_pooling_layer=False,
    ),
    "nomic_bert with heads of their own size": lambda: transformers.NomicBertModel(
        transformers.NomicBertConfig(**BERT, head_dim=12)
    ),
    "gte with heads of their own size": lambda: library.GteModel(library.GteConfig(**BERT, head_dim=12)),
    "jina_embeddings_v3 with heads of their own size": lambda: library.JinaEmbeddingsV3Model(
        library.JinaEmbeddingsV3Config(**BERT, head_dim=12), add_pooling_layer=False
    ),
}


def made(name: str, folder: Path) -> Any:
    """A model with weights large enough for every part to count, saved in ``folder``."""
    torch.manual_seed(sum(map(ord, name)))
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    return model


def ours(folder: Path, place: LayerContext) -> Encoder:
    config = encoder_config_from_hf(read_json(folder / "config.json"))
    encoder = Encoder(config, place, max_model_len=config.max_position)
    tensors = load_file(folder / "model.safetensors")
    encoder.weights.load(canonical(config.family, tensors.items()), ignore=("position_ids",))
    return encoder


def packed(texts: list[list[int]]) -> ForwardBatch:
    lengths = torch.tensor([0, *(len(text) for text in texts)])
    starts = lengths.cumsum(0).int()
    tokens = torch.tensor([token for text in texts for token in text])
    return ForwardBatch.whole(tokens, VarlenBatch(starts, int(lengths.max())))


def some_texts(vocab: int, pad: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    low = max(3, pad + 1)
    return [torch.randint(low, vocab, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_hidden_states_are_those_of_transformers_whatever_shares_the_batch(name: str, tmp_path: Path) -> None:
    model = made(name, tmp_path)
    encoder = ours(tmp_path, LayerContext(torch.device("cpu"), torch.float32, False))
    texts = some_texts(encoder.config.vocab_size, 1)
    found = encoder.forward(packed(texts))
    begin = 0
    for text in texts:
        expected = model(input_ids=torch.tensor([text])).last_hidden_state[0]
        rows = found[begin : begin + len(text)]
        begin += len(text)
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-4)
        alone = encoder.forward(packed([text]))
        torch.testing.assert_close(alone, rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("gte", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor rotates 4 of 8 dimensions"),
        ("nomic_bert", {"partial_rotary_factor": 0.5}, "partial_rotary_factor rotates 4 of 8 dimensions"),
        ("mpnet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64, expected 32"),
    ],
)
def test_fields_that_transformers_ignores_are_refused(kind: str, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        encoder_config_from_hf({"model_type": kind, **BERT, **change})


@torch.inference_mode()
def test_kinds_of_tokens_are_told_apart(tmp_path: Path) -> None:
    model = made("bert", tmp_path)
    encoder = ours(tmp_path, LayerContext(torch.device("cpu"), torch.float32, False))
    (text,) = some_texts(encoder.config.vocab_size, 1)[3:4]
    types = torch.arange(len(text)).ge(30).long()
    expected = model(input_ids=torch.tensor([text]), token_type_ids=types[None]).last_hidden_state[0]
    batch = replace(packed([text]), token_types=types)
    torch.testing.assert_close(encoder.forward(batch), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "electra", "modernbert", "mpnet", "gte"])
@torch.inference_mode()
def test_packed_weights_say_the_same_as_plain_ones(name: str, tmp_path: Path) -> None:
    if native.library() is None or torch.float32 not in PLAIN:
        pytest.skip("needs the native library")
    made(name, tmp_path)
    plain = ours(tmp_path, LayerContext(torch.device("cpu"), torch.float32, False))
    packed_weights = ours(tmp_path, LayerContext(torch.device("cpu"), torch.float32, False, packed=True))
    batch = packed(some_texts(plain.config.vocab_size, 1))
    torch.testing.assert_close(packed_weights.forward(batch), plain.forward(batch), rtol=1e-3, atol=1e-3)


def test_the_layers_are_told_when_one_has_run(tmp_path: Path) -> None:
    made("bert", tmp_path)
    encoder = ours(tmp_path, LayerContext(torch.device("cpu"), torch.float32, False))
    called: list[None] = []
    encoder.forward(replace(packed([[5, 6, 7]]), after_layer=lambda: called.append(None)))
    assert len(called) == 3
