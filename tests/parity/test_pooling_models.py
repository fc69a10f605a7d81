"""Heads and poolings against transformers, on tiny random models, in float32."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from stentor.engine.layers.forward_batch import ForwardBatch
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.layers.varlen_batch import VarlenBatch
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pooling_checkpoint import open_pooling, pooling_config
from stentor.engine.loading.weights import tensors_from
from stentor.engine.models.pooling_model import PooledTensor, PoolingModel
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.families.pooling import PoolingFamily
from stentor.protocols.ipc.config import ModelImpl, WorkerConfig
from stentor.protocols.ipc.pooling import Pooling, PoolingTask

library: Any = transformers  # whose types know no labels

SIZES: dict[str, Any] = {"vocab_size": 130, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BERT: dict[str, Any] = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 96}
MODERN: dict[str, Any] = {
    **BERT,
    "local_attention": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
DISTIL: dict[str, Any] = {
    "vocab_size": 130,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 96,
}
TEXTS = [[5, 9, 60, 7], [8], [101, 4, 4, 33, 90, 17, 6]]
PLACE = LayerContext(torch.device("cpu"), torch.float32, False)

SEQUENCES: dict[str, Callable[[], Any]] = {
    "bert": lambda: library.BertForSequenceClassification(library.BertConfig(**BERT, num_labels=3)),
    "roberta": lambda: library.RobertaForSequenceClassification(
        library.RobertaConfig(**BERT, num_labels=3, type_vocab_size=1, pad_token_id=1)
    ),
    "xlm-roberta, one label": lambda: library.XLMRobertaForSequenceClassification(
        library.XLMRobertaConfig(**BERT, num_labels=1, type_vocab_size=1, pad_token_id=1)
    ),
    "distilbert": lambda: library.DistilBertForSequenceClassification(library.DistilBertConfig(**DISTIL, num_labels=3)),
    "mpnet": lambda: library.MPNetForSequenceClassification(library.MPNetConfig(**BERT, num_labels=3)),
    "modernbert": lambda: library.ModernBertForSequenceClassification(library.ModernBertConfig(**MODERN, num_labels=3)),
    "modernbert, mean": lambda: library.ModernBertForSequenceClassification(
        library.ModernBertConfig(**MODERN, num_labels=1, classifier_pooling="mean", classifier_bias=True)
    ),
    "nomic_bert": lambda: library.NomicBertForSequenceClassification(library.NomicBertConfig(**BERT, num_labels=3)),
    "gte": lambda: library.GteForSequenceClassification(library.GteConfig(**BERT, num_labels=1)),
    "jina_embeddings_v3": lambda: library.JinaEmbeddingsV3ForSequenceClassification(
        library.JinaEmbeddingsV3Config(**BERT, num_labels=2)
    ),
    "electra": lambda: library.ElectraForSequenceClassification(
        library.ElectraConfig(**BERT, embedding_size=16, num_labels=1)
    ),
    "ernie": lambda: library.ErnieForSequenceClassification(
        library.ErnieConfig(**BERT, use_task_id=True, num_labels=3)
    ),
    "data2vec": lambda: library.Data2VecTextForSequenceClassification(
        library.Data2VecTextConfig(**BERT, num_labels=3, type_vocab_size=1, pad_token_id=1)
    ),
}
ELSEWHERE: dict[str, Callable[[], Any]] = {
    "roformer": lambda: library.RoFormerForSequenceClassification(
        library.RoFormerConfig(**BERT, embedding_size=16, num_labels=3)
    ),
    "albert": lambda: library.AlbertForSequenceClassification(
        library.AlbertConfig(**BERT, embedding_size=16, num_labels=3)
    ),
    "deberta": lambda: library.DebertaV2ForSequenceClassification(
        library.DebertaV2Config(**BERT, num_labels=1, relative_attention=True, pos_att_type=["p2c", "c2p"])
    ),
    "roberta, normed first": lambda: library.RobertaPreLayerNormForSequenceClassification(
        library.RobertaPreLayerNormConfig(**BERT, num_labels=3, pad_token_id=1)
    ),
    "longformer": lambda: library.LongformerForSequenceClassification(
        library.LongformerConfig(**BERT, attention_window=4, num_labels=3, pad_token_id=1)
    ),
}
"""Run on transformers' modules."""
SEQUENCES.update(ELSEWHERE)
BART: dict[str, Any] = {
    "vocab_size": 130,
    "d_model": 32,
    **{f"{side}_{what}": count for side in ("encoder", "decoder") for what, count in (("layers", 2), ("ffn_dim", 48))},
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    "max_position_embeddings": 96,
    "num_labels": 3,
}
END: int = 2
SCORED_AT_END: dict[str, Callable[[], Any]] = {
    "bart": lambda: library.BartForSequenceClassification(
        library.BartConfig(**BART, pad_token_id=1, bos_token_id=0, eos_token_id=END, decoder_start_token_id=END)
    ),
    "t5": lambda: library.T5ForSequenceClassification(
        library.T5Config(
            vocab_size=130,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=4,
            num_labels=1,
            eos_token_id=END,
            decoder_start_token_id=0,
        )
    ),
}
"""Encoder-decoders whose decoder reads the text again, up to the token that is scored."""
BARE: dict[str, Callable[[], Any]] = {
    "electra, native": lambda: library.ElectraForPreTraining(library.ElectraConfig(**BERT, embedding_size=16)),
    "deberta": lambda: library.DebertaV2ForMaskedLM(library.DebertaV2Config(**BERT)),
    "albert": lambda: library.AlbertModel(library.AlbertConfig(**BERT)),
    "t5": lambda: library.T5EncoderModel(
        library.T5Config(vocab_size=130, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    ),
    "gpt": lambda: library.GPT2Model(library.GPT2Config(vocab_size=130, n_embd=32, n_layer=2, n_head=4)),
}
TOKENS: dict[str, Callable[[], Any]] = {
    "bert": lambda: library.BertForTokenClassification(library.BertConfig(**BERT, num_labels=5)),
    "electra": lambda: library.ElectraForTokenClassification(library.ElectraConfig(**BERT, num_labels=5)),
    "distilbert": lambda: library.DistilBertForTokenClassification(library.DistilBertConfig(**DISTIL, num_labels=5)),
    "modernbert": lambda: library.ModernBertForTokenClassification(library.ModernBertConfig(**MODERN, num_labels=5)),
}
MASKED: dict[str, Callable[[], Any]] = {
    "bert": lambda: library.BertForMaskedLM(library.BertConfig(**BERT)),
    "distilbert": lambda: library.DistilBertForMaskedLM(library.DistilBertConfig(**DISTIL)),
    "roberta": lambda: library.RobertaForMaskedLM(library.RobertaConfig(**BERT, type_vocab_size=1, pad_token_id=1)),
}


def saved(make: Callable[[], Any], folder: Path) -> Any:
    torch.manual_seed(11)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    return model


def opened(folder: Path, model_impl: ModelImpl = "auto") -> PoolingModel:
    model = PoolingModel(pooling_config(folder, model_impl=model_impl), PLACE, max_model_len=90)

    def files(name: str) -> list[tuple[str, torch.Tensor]]:
        path = folder / name
        if path.suffix == ".pt":
            return [*tensors_from(path)]
        return [*load_file(path / "model.safetensors" if path.is_dir() else path).items()]

    model.load(load_file(folder / "model.safetensors").items(), files)
    return model


def asked(
    model: PoolingModel, task: PoolingTask, *, kinds: bool = False, texts: Sequence[list[int]] = TEXTS, **options: Any
) -> list[PooledTensor]:
    """``kinds``: every other token is of the second kind."""
    tokens = torch.tensor([token for text in texts for token in text])
    starts = torch.tensor([0, *(len(text) for text in texts)]).cumsum(0)
    batch = ForwardBatch.whole(
        tokens, VarlenBatch(starts.int(), max(map(len, texts))), token_types=tokens % 2 if kinds else None
    )
    hidden = model.normed(model.forward(batch))
    return model.pool(hidden, tokens, starts, [Pooling(task, **options)] * len(texts))


@pytest.mark.parametrize("name", SEQUENCES)
@torch.inference_mode()
def test_texts_are_scored_as_transformers_scores_them(name: str, tmp_path: Path) -> None:
    theirs, ours = saved(SEQUENCES[name], tmp_path), opened(tmp_path)
    assert ours.tasks[0] == "classify"
    raw, activated = asked(ours, "classify", activate=False), asked(ours, "classify")
    for text, logits, scores in zip(TEXTS, raw, activated, strict=True):
        expected = theirs(input_ids=torch.tensor([text])).logits
        torch.testing.assert_close(logits.values, expected, rtol=1e-4, atol=1e-4)
        shown = expected.sigmoid() if expected.shape[1] == 1 else expected.softmax(-1)
        torch.testing.assert_close(scores.values, shown, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCORED_AT_END)
@torch.inference_mode()
def test_encoder_decoders_score_the_last_end_of_a_text(name: str, tmp_path: Path) -> None:
    theirs, ours = saved(SCORED_AT_END[name], tmp_path), opened(tmp_path)
    assert ours.tasks[0] == "classify"
    assert ours.config.score is not None
    assert ours.config.score.scored_token == END
    texts = [[5, 9, END], [END], [9, END, 5], [101, 4, END, 33, END, 17, END], [1, 2, 3, 4, 5, 6, 7]]
    for text, logits in zip(texts, asked(ours, "classify", texts=texts, activate=False), strict=True):
        expected = theirs(input_ids=torch.tensor([text])).logits
        torch.testing.assert_close(logits.values, expected, rtol=1e-4, atol=1e-4)


def test_a_classifier_that_shortens_texts_is_refused(tmp_path: Path) -> None:
    funnel = library.FunnelConfig(vocab_size=130, block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48)
    saved(lambda: library.FunnelForSequenceClassification(funnel), tmp_path)
    with pytest.raises(WeightError, match="makes 2 states of 3 tokens, expected one for each"):
        opened(tmp_path)


@pytest.mark.parametrize("name", BARE)
@torch.inference_mode()
def test_a_model_with_another_head_or_none_gives_the_hidden_states_of_transformers(name: str, tmp_path: Path) -> None:
    theirs, ours = saved(BARE[name], tmp_path), opened(tmp_path)
    below = theirs.base_model
    for text, found in zip(TEXTS, asked(ours, "token_embed"), strict=True):
        expected = below(input_ids=torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(found.values, expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_native_model_gives_the_same_on_the_modules_of_transformers(tmp_path: Path) -> None:
    saved(SEQUENCES["bert"], tmp_path)
    ours, elsewhere = opened(tmp_path), opened(tmp_path, "transformers")
    for task in ("classify", "embed", "token_embed"):
        for one, other in zip(asked(ours, task), asked(elsewhere, task), strict=True):
            torch.testing.assert_close(one.values, other.values, rtol=1e-4, atol=1e-4)
    assert elsewhere.token_types == ours.token_types == 2
    for one, other in zip(asked(ours, "embed", kinds=True), asked(elsewhere, "embed", kinds=True), strict=True):
        torch.testing.assert_close(one.values, other.values, rtol=1e-4, atol=1e-4)


def test_what_modules_of_transformers_cannot_do_is_refused(tmp_path: Path) -> None:
    saved(ELSEWHERE["albert"], tmp_path)
    with pytest.raises(CheckpointError, match="leave --model-impl native out to run that"):
        pooling_config(tmp_path, model_impl="native")
    family = PoolingFamily(open_pooling(tmp_path), "cpu")
    assert not family.packs
    with pytest.raises(SetupError, match="--quantization fp8: transformers' modules keep plain weights"):
        family.longest(WorkerConfig(str(tmp_path), quantization="fp8"))
    with pytest.raises(SetupError, match="--batch-invariant: torch's products"):
        family.longest(WorkerConfig(str(tmp_path), batch_invariant=True))
    config = json.loads((tmp_path / "config.json").read_text())
    for field, value, message in (
        ("model_type", "mamba3x", "code in checkpoints is never run"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "its weights are quantised"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
        with pytest.raises(CheckpointError, match=message):
            pooling_config(tmp_path)


@pytest.mark.parametrize("name", TOKENS)
@torch.inference_mode()
def test_tokens_are_scored_as_transformers_scores_them(name: str, tmp_path: Path) -> None:
    theirs, ours = saved(TOKENS[name], tmp_path), opened(tmp_path)
    assert ours.tasks[0] == "token_classify"
    for text, found in zip(TEXTS, asked(ours, "token_classify"), strict=True):
        expected = theirs(input_ids=torch.tensor([text])).logits[0].softmax(-1)
        torch.testing.assert_close(found.values, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MASKED)
@torch.inference_mode()
def test_splade_weighs_the_vocabulary(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "some-splade"
    theirs, ours = saved(MASKED[name], folder), opened(folder)
    assert ours.tasks[0] == "sparse"
    for text, found in zip(TEXTS, asked(ours, "sparse"), strict=True):
        expected = theirs(input_ids=torch.tensor([text])).logits[0].relu().log1p().amax(0)
        assert found.ids is not None
        assert found.ids.tolist() == expected.nonzero()[:, 0].tolist()
        torch.testing.assert_close(found.values[0], expected[found.ids], rtol=1e-4, atol=1e-4)


LLM: dict[str, Any] = {
    **SIZES,
    "intermediate_size": 48,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
}
GEMMA: dict[str, Any] = {
    **LLM,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


@pytest.mark.parametrize("width", [4, 6])
@torch.inference_mode()
def test_a_gemma_that_looks_both_ways_embeds_texts(width: int, tmp_path: Path) -> None:
    config = transformers.Gemma3TextConfig(**GEMMA, sliding_window=width, use_bidirectional_attention=True)
    theirs = saved(lambda: transformers.Gemma3TextModel(config), tmp_path)
    ours = opened(tmp_path)
    assert not ours.config.causal
    for text, found, each in zip(TEXTS, asked(ours, "embed"), asked(ours, "token_embed"), strict=True):
        hidden = theirs(input_ids=torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(each.values, hidden, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.values[0], hidden.mean(0) / hidden.mean(0).norm(), rtol=1e-5, atol=1e-5)


def bert(folder: Path, **config: Any) -> Any:
    return saved(lambda: library.BertModel(library.BertConfig(**BERT, **config), add_pooling_layer=False), folder)


@torch.inference_mode()
def test_vectors_are_the_normalised_mean_unless_files_say_otherwise(tmp_path: Path) -> None:
    theirs, ours = bert(tmp_path), opened(tmp_path)
    for text, found in zip(TEXTS, asked(ours, "embed"), strict=True):
        expected = theirs(input_ids=torch.tensor([text])).last_hidden_state[0].mean(0)
        torch.testing.assert_close(found.values[0], expected / expected.norm(), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_vectors_go_through_a_dense_module(tmp_path: Path) -> None:
    theirs = bert(tmp_path)
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    (tmp_path / "2_Dense").mkdir()
    dense = {"in_features": 32, "out_features": 8, "bias": True, "activation_function": "torch.nn.Tanh"}
    (tmp_path / "2_Dense/config.json").write_text(json.dumps(dense))
    weight, bias = torch.randn(8, 32), torch.randn(8)
    save_file({"linear.weight": weight, "linear.bias": bias}, tmp_path / "2_Dense/model.safetensors")
    ours = opened(tmp_path)
    assert ours.config.dimensions == 8
    for text, found in zip(TEXTS, asked(ours, "embed"), strict=True):
        first = theirs(input_ids=torch.tensor([text])).last_hidden_state[0, 0]
        torch.testing.assert_close(found.values[0], torch.tanh(weight @ first + bias), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_vectors_are_cut_and_normalised_again(tmp_path: Path) -> None:
    bert(tmp_path)
    ours = opened(tmp_path)
    for whole, cut in zip(asked(ours, "embed", normalize=False), asked(ours, "embed", dimensions=8), strict=True):
        assert cut.values.shape == (1, 8)
        expected = torch.nn.functional.normalize(whole.values[:, :8], dim=-1)
        torch.testing.assert_close(cut.values, expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_request_may_have_vectors_without_the_models_normalisation(tmp_path: Path) -> None:
    theirs = bert(tmp_path)
    ours = opened(tmp_path)
    assert ours.config.modules.normalizes
    for text, raw, usual in zip(TEXTS, asked(ours, "embed", normalize=False), asked(ours, "embed"), strict=True):
        expected = theirs(input_ids=torch.tensor([text])).last_hidden_state.mean(1)
        assert (expected.norm(dim=-1) - 1).abs() > 0.1
        torch.testing.assert_close(raw.values, expected, rtol=1e-4, atol=1e-5)
        normalised = torch.nn.functional.normalize(expected, dim=-1)
        torch.testing.assert_close(usual.values, normalised, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_bge_m3_makes_dense_sparse_and_token_vectors(tmp_path: Path) -> None:
    theirs = saved(
        lambda: library.XLMRobertaModel(
            library.XLMRobertaConfig(**BERT, type_vocab_size=1, pad_token_id=1), add_pooling_layer=False
        ),
        tmp_path,
    )
    sparse, vectors = torch.nn.Linear(32, 1), torch.nn.Linear(32, 32)
    torch.save(sparse.state_dict(), tmp_path / "sparse_linear.pt")
    torch.save(vectors.state_dict(), tmp_path / "colbert_linear.pt")
    ours = opened(tmp_path)
    assert ours.tasks == ("embed", "token_embed", "sparse")
    found = zip(TEXTS, asked(ours, "embed"), asked(ours, "token_embed"), asked(ours, "sparse"), strict=True)
    for text, dense, tokens, weights in found:
        hidden = theirs(input_ids=torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(dense.values[0], hidden[0] / hidden[0].norm(), rtol=1e-5, atol=1e-5)
        expected = torch.nn.functional.normalize(vectors(hidden[1:]), dim=-1)
        torch.testing.assert_close(tokens.values, expected, rtol=1e-5, atol=1e-5)
        given = sparse(hidden).relu()[:, 0].tolist()
        largest = {token: max(w for w, t in zip(given, text, strict=True) if t == token) for token in text}
        assert weights.ids is not None
        made = dict(zip(weights.ids.tolist(), weights.values[0].tolist(), strict=True))
        assert made == pytest.approx({token: weight for token, weight in largest.items() if weight > 0}, abs=1e-5)


@torch.inference_mode()
def test_a_colbert_makes_a_vector_of_each_token(tmp_path: Path) -> None:
    theirs = bert(tmp_path)
    layer = torch.randn(16, 32)
    stored = load_file(tmp_path / "model.safetensors")
    renamed = {f"bert.{name}": tensor for name, tensor in stored.items()}
    save_file({**renamed, "linear.weight": layer}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    ours = opened(tmp_path)
    for text, found in zip(TEXTS, asked(ours, "token_embed"), strict=True):
        hidden = theirs(input_ids=torch.tensor([text])).last_hidden_state[0]
        expected = torch.nn.functional.normalize(hidden @ layer.T, dim=-1)
        torch.testing.assert_close(found.values, expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_tokens_of_a_prompt_may_be_left_out_of_the_pooling(tmp_path: Path) -> None:
    theirs, ours = bert(tmp_path), opened(tmp_path)
    tokens = torch.tensor(TEXTS[2])
    starts = torch.tensor([0, len(tokens)])
    hidden = ours.normed(ours.forward(ForwardBatch.whole(tokens, VarlenBatch(starts.int(), len(tokens)))))
    (found,) = ours.pool(hidden, tokens, starts, [Pooling("embed", skip=3)])
    expected = theirs(input_ids=tokens[None]).last_hidden_state[0, 3:].mean(0)
    torch.testing.assert_close(found.values[0], expected / expected.norm(), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_colbert_of_pylate_has_its_layer_in_a_folder(tmp_path: Path) -> None:
    theirs = saved(lambda: transformers.ModernBertModel(transformers.ModernBertConfig(**MODERN)), tmp_path)
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_Dense").mkdir()
    dense = {"in_features": 32, "out_features": 16, "bias": False}
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    (tmp_path / "1_Dense/config.json").write_text(json.dumps({**dense, **identity}))
    layer = torch.randn(16, 32)
    save_file({"linear.weight": layer}, tmp_path / "1_Dense/model.safetensors")
    ours = opened(tmp_path)
    for text, found in zip(TEXTS, asked(ours, "token_embed"), strict=True):
        hidden = theirs(input_ids=torch.tensor([text])).last_hidden_state[0]
        expected = torch.nn.functional.normalize(hidden @ layer.T, dim=-1)
        torch.testing.assert_close(found.values, expected, rtol=1e-5, atol=1e-5)
    (tmp_path / "1_Dense/config.json").write_text(json.dumps({**dense, "activation_function": "torch.nn.Tanh"}))
    with pytest.raises(CheckpointError, match="expected one that is identity"):
        pooling_config(tmp_path)


@torch.inference_mode()
def test_a_colbert_of_jinas(tmp_path: Path) -> None:
    """XLM-RoBERTa that rotates, with Stanford's notes beside it."""
    config = transformers.JinaEmbeddingsV3Config(**{**BERT, "pad_token_id": 1})
    theirs = saved(lambda: transformers.JinaEmbeddingsV3Model(config, add_pooling_layer=False), tmp_path)
    layer = torch.randn(16, 32)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({**stored, "linear.weight": layer}, tmp_path / "model.safetensors")
    described = json.loads((tmp_path / "config.json").read_text())
    older = {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": 20000.0}
    (tmp_path / "config.json").write_text(json.dumps({**described, **older}))
    (tmp_path / "artifact.metadata").write_text(json.dumps({"dim": 16, "query_maxlen": 32}))
    ours = opened(tmp_path)
    for text, found in zip(TEXTS, asked(ours, "token_embed"), strict=True):
        hidden = theirs(input_ids=torch.tensor([text])).last_hidden_state[0]
        expected = torch.nn.functional.normalize(hidden @ layer.T, dim=-1)
        torch.testing.assert_close(found.values, expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_a_splade_with_module_files(tmp_path: Path) -> None:
    theirs = saved(MASKED["distilbert"], tmp_path)
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.sparse_encoder.models.MLMTransformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": "x.models.SpladePooling.SpladePooling"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_SpladePooling").mkdir()
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": 130}
    (tmp_path / "1_SpladePooling/config.json").write_text(json.dumps(pooling))
    ours = opened(tmp_path)
    for text, found in zip(TEXTS, asked(ours, "sparse"), strict=True):
        expected = theirs(input_ids=torch.tensor([text])).logits[0].relu().log1p().amax(0)
        assert found.ids is not None
        torch.testing.assert_close(found.values[0], expected[found.ids], rtol=1e-4, atol=1e-4)
    (tmp_path / "1_SpladePooling/config.json").write_text(json.dumps({**pooling, "pooling_strategy": "mean"}))
    with pytest.raises(CheckpointError, match="pooling_strategy of SpladePooling is 'mean', expected one of max, sum"):
        pooling_config(tmp_path)
