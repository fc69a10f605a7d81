"""Models of late interaction over pictures of pages, beside transformers' own in float32."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import torch
import transformers as untyped_transformers
from safetensors.torch import save_file

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.kind import kind_of
from stentor.engine.loading.pooling_checkpoint import pooling_config
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.pictures import PICTURES, Kind, cat, prompt_of, qwen_picture, square
from stentor.tests.parity.seeing import CONFIGS
from stentor.tests.parity.test_media_poolers import close, text
from stentor.tests.support.vision_models import PATCH, SIDE, SIZES, TEXT, VOCAB, token

transformers: Any = untyped_transformers

VISION: Final = {**SIZES, "image_size": SIDE, "patch_size": PATCH}


def colqwen2() -> Any:
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2, "patch_size": PATCH}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    inner = transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": rope},
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    return transformers.ColQwen2ForRetrieval(transformers.ColQwen2Config(vlm_config=inner, embedding_dim=24))


def colpali() -> Any:
    inner = transformers.PaliGemmaConfig(
        text_config={"model_type": "gemma", **TEXT, "head_dim": 16},
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        image_token_index=token("<image>"),
        projection_dim=64,
    )
    return transformers.ColPaliForRetrieval(transformers.ColPaliConfig(vlm_config=inner, embedding_dim=24))


def colmodernvbert() -> Any:
    """Every third layer sees all of a text, others a window."""
    text = {**SIZES, "num_hidden_layers": 4, "vocab_size": VOCAB, "local_attention": 8, "max_position_embeddings": 2048}
    text |= {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    inner = transformers.ModernVBertConfig(
        text_config={"model_type": "modernbert", **text},
        vision_config={"model_type": "siglip_vision_model", **VISION},
        image_token_id=token("<image>"),
        pixel_shuffle_factor=2,
    )
    config = transformers.ColModernVBertConfig(vlm_config=inner, embedding_dim=24)
    return transformers.ColModernVBertForRetrieval(config)


class ColQwen3(torch.nn.Module):
    """A Qwen3-VL with a layer on each token, as its makers' code has it, which comes with the files."""

    def __init__(self, inner: Any, outputs: int, dims: int) -> None:
        super().__init__()
        self.inner, self.layer, self.dims = inner, torch.nn.Linear(64, outputs), dims

    def forward(self, **given: Any) -> Any:
        kinds = (given["input_ids"] == token("<|image_pad|>")).long()
        vectors = self.layer(self.inner(**given, mm_token_type_ids=kinds).last_hidden_state)[..., : self.dims]
        return SimpleNamespace(embeddings=torch.nn.functional.normalize(vectors, dim=-1))

    def save_pretrained(self, folder: Path) -> None:
        ops = self.layer.out_features != self.dims
        inner, layer = ("", "custom_text_proj") if ops else ("vlm.model.", "embedding_proj_layer")
        tensors = {f"{inner}{name}": tensor for name, tensor in self.inner.state_dict().items()}
        tensors |= {f"{layer}.{name}": tensor for name, tensor in self.layer.state_dict().items()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
        own = {"model_type": "colqwen3", "architectures": ["ColQwen3"], "embed_dim": self.dims}
        if ops:
            own = {"model_type": "ops_colqwen3", "architectures": ["OpsColQwen3Model"], "dims": self.dims}
        (folder / "config.json").write_text(json.dumps({**self.inner.config.to_dict(), **own}))


class ColQwen35(ColQwen3):
    """The same of a Qwen3.5, some of whose layers are recurrent; the others see both sides if ``both``."""

    def __init__(self, inner: Any, *, both: bool) -> None:
        super().__init__(inner, 24, 24)
        self.contract = "bidirectional" if both else "causal"
        if both:
            see_both_ways(inner)

    def save_pretrained(self, folder: Path) -> None:
        layer = {f"custom_text_proj.{name}": tensor for name, tensor in self.layer.state_dict().items()}
        save_file({**self.inner.state_dict(), **layer}, folder / "model.safetensors")
        own = {"architectures": ["ColQwen3_5"], "dim": 24, "retrieval_attention_contract": self.contract}
        (folder / "config.json").write_text(json.dumps({**self.inner.config.to_dict(), **own}))


class NemotronColEmbed(torch.nn.Module):
    """A Qwen3-VL that looks both ways; its vectors are normalised, without its last norm."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        see_both_ways(inner)
        self.inner = inner

    def forward(self, **given: Any) -> Any:
        kinds = (given["input_ids"] == token("<|image_pad|>")).long()
        text = self.inner.language_model
        norm, text.norm = text.norm, torch.nn.Identity()
        vectors = self.inner(**given, mm_token_type_ids=kinds).last_hidden_state
        text.norm = norm
        return SimpleNamespace(embeddings=torch.nn.functional.normalize(vectors, dim=-1))

    def save_pretrained(self, folder: Path) -> None:
        tensors = {f"model.{name}": tensor.contiguous() for name, tensor in self.inner.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")
        own = {"model_type": "qwen3_vl_nemotron_embed", "architectures": ["Qwen3VLNemotronEmbedModel"]}
        (folder / "config.json").write_text(json.dumps({**self.inner.config.to_dict(), **own, "pooling": "colbert"}))


def see_both_ways(model: Any) -> None:
    """As their makers' code has it: of layers of attention alone."""
    for config in (model.config, model.config.text_config):
        config.is_causal = False
    for module in model.language_model.modules():
        if getattr(module, "is_causal", False):
            module.is_causal = False


def colqwen3_5(*, both: bool) -> ColQwen35:
    return ColQwen35(transformers.Qwen3_5Model(CONFIGS["qwen3_5"]()), both=both)


def nemotron_colembed() -> NemotronColEmbed:
    return NemotronColEmbed(colqwen3().inner)


def colqwen3(outputs: int = 24) -> ColQwen3:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    vision: dict[str, Any] = {
        "depth": 3,
        "hidden_size": 64,
        "num_heads": 4,
        "intermediate_size": 96,
        "patch_size": PATCH,
    }
    vision |= {"out_hidden_size": 64, "deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    config = transformers.Qwen3VLConfig(
        text_config={**TEXT, "head_dim": 16, "rope_parameters": rope},
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    return ColQwen3(transformers.Qwen3VLModel(config), outputs, 24)


MODELS: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "colqwen2": (colqwen2, Kind(qwen_picture, token("<|image_pad|>"), cat())),
    "colqwen3": (colqwen3, Kind(qwen_picture, token("<|image_pad|>"), cat())),
    "ops_colqwen3": (lambda: colqwen3(64), Kind(qwen_picture, token("<|image_pad|>"), cat())),
    "colqwen3_5": (lambda: colqwen3_5(both=False), Kind(qwen_picture, token("<|image_pad|>"), cat())),
    "colqwen3_5_both": (lambda: colqwen3_5(both=True), Kind(qwen_picture, token("<|image_pad|>"), cat())),
    "nemotron_colembed": (nemotron_colembed, Kind(qwen_picture, token("<|image_pad|>"), cat())),
    "colpali": (colpali, Kind(square("<image>", 16), token("<image>"), cat())),
    "colmodernvbert": (colmodernvbert, PICTURES["idefics3"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_token_of_a_page_has_the_vector_of_transformers(name: str, tmp_path: Path) -> None:
    make, kind = MODELS[name]
    torch.manual_seed(5)
    theirs = make().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.1)
    theirs.save_pretrained(tmp_path)
    engine = LocalEngine(model_config(tmp_path, max_model_len=128, kv_cache_memory=4 << 20, is_pooling=True))
    pages = [kind.draw(torch.Generator().manual_seed(seed), seed % 2) for seed in (1, 2)]
    prompts = [prompt_of(kind, text(9)), prompt_of(kind, [50], pages[0], text(4)), prompt_of(kind, pages[1], [7, 8])]
    many = [kind.draw(torch.Generator().manual_seed(10 + seed), seed % 2) for seed in range(6)]  # more than a step's
    prompts.append(prompt_of(kind, [60], *many))
    asked = SamplingParams(max_tokens=0)
    rids = [engine.submit(each.tokens, asked, media=each.media, pooling=Pooling("token_embed")) for each in prompts]
    engine.run(check=True)
    assert not any("transformers" in note for note in engine.ready.notes), "its tower is native"
    for rid, prompt in zip(rids, prompts, strict=True):
        pooled = engine.prompts[rid].pooled
        assert pooled is not None
        given = kind.merge([each.tensors for each in prompt.pictures]) if prompt.pictures else {}
        ids = torch.tensor([prompt.tokens])
        if name == "colpali":
            given["token_type_ids"] = torch.zeros_like(ids)
        elif name == "colqwen2" and len(prompt.pictures) > 1:
            continue  # it wants pixels filled up to one length, of which it takes the first apart
        elif name == "colqwen2" and prompt.pictures:
            given["pixel_values"] = given["pixel_values"].unsqueeze(0)
        with torch.inference_mode():
            expected = theirs(input_ids=ids, attention_mask=torch.ones_like(ids), **given).embeddings[0]
        close(np.frombuffer(pooled.data, "<f4").reshape(pooled.rows, pooled.columns), expected)


@pytest.mark.parametrize("said", [None, "sideways"])
def test_a_colqwen3_5_whose_files_do_not_say_what_it_sees_is_refused(said: str | None, tmp_path: Path) -> None:
    described = {
        **CONFIGS["qwen3_5"]().to_dict(),
        "architectures": ["ColQwen3_5"],
        "retrieval_attention_contract": said,
    }
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert kind_of(tmp_path) == "embedding"
    with pytest.raises(CheckpointError, match=f"contract is {said or 'missing'}, expected 'causal' or 'bidirectional'"):
        pooling_config(tmp_path)
