import json
from pathlib import Path
from typing import Any

import pytest

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.sentence_modules import read_sentence_modules
from stentor.engine.model_config.encoders.sentence import Dense, Normalized, SentenceModules


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def modules(*kinds: str) -> list[dict[str, object]]:
    return [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}" if number else "", "type": f"x.models.{kind}"}
        for number, kind in enumerate(kinds)
    ]


def test_files_of_the_older_kind_are_read(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {
            "modules.json": modules("Transformer", "Pooling", "Normalize"),
            "1_Pooling/config.json": {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True},
            "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": True},
        },
    )
    read = read_sentence_modules(folder, causal=False)
    assert read == SentenceModules(("mean",), after=(Normalized(),), max_length=256, lower_case=True)
    assert read.normalizes


def test_files_of_the_newer_kind_are_read_with_prompts_and_dense_layers(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {
            "modules.json": modules("Transformer", "Pooling", "Dropout", "Dense"),
            "1_Pooling/config.json": {
                "embedding_dimension": 8,
                "pooling_mode": ["cls", "lasttoken"],
                "include_prompt": False,
            },
            "3_Dense/config.json": {
                "in_features": 16,
                "out_features": 4,
                "bias": False,
                "activation_function": "torch.nn.modules.linear.Identity",
            },
            "config_sentence_transformers.json": {
                "prompts": {"query": "query: ", "document": ""},
                "default_prompt_name": "query",
            },
        },
    )
    read = read_sentence_modules(folder, causal=True)
    assert read.pooling == ("cls", "lasttoken")
    assert not read.include_prompt
    assert not read.normalizes
    assert read.after == (Dense(folder / "3_Dense", 16, 4, False, "identity"),)
    assert read.prompts == {"query": "query: ", "document": ""}
    assert read.default_prompt == "query"


@pytest.mark.parametrize(("causal", "mode"), [(True, "lasttoken"), (False, "mean")])
def test_a_folder_without_them_is_read_by_its_kind(tmp_path: Path, causal: bool, mode: str) -> None:
    assert read_sentence_modules(tmp_path, causal=causal) == SentenceModules((mode,), after=(Normalized(),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "reported"),
    [
        ({"modules.json": modules("Transformer", "LSTM")}, "a module 'LSTM', which is not known"),
        ({"modules.json": {}}, "expected a JSON array of objects"),
        ({"modules.json": [{"type": "x.Pooling", "path": "../../etc"}]}, "expected one within the model's folder"),
        (
            {"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": {"pooling_mode": "median"}},
            "pooling_mode is 'median', expected one of cls, max, mean",
        ),
        (
            {
                "modules.json": modules("Transformer", "Dense"),
                "1_Dense/config.json": {"in_features": 1, "out_features": 1, "activation_function": "os.system"},
            },
            "activation_function is 'system'",
        ),
        ({"modules.json": modules(*["Dropout"] * 17)}, "lists 17 modules"),
        (
            {
                "modules.json": modules("Transformer"),
                "config_sentence_transformers.json": {"prompts": {}, "default_prompt_name": "query"},
            },
            "default_prompt_name is 'query', which is none of the prompts",
        ),
    ],
)
def test_what_cannot_be_run_is_said_in_a_line(tmp_path: Path, files: dict[str, Any], reported: str) -> None:
    with pytest.raises(CheckpointError, match=reported):
        read_sentence_modules(write(tmp_path, files), causal=False)
