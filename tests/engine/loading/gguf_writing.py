"""Writes values and what every GGUF file has."""

from typing import Any

import gguf


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes what it was told."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """None is not said."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list() | tuple():
            writer.add_array(key, list(value))


def rope_values(config: Any) -> dict[str, Any]:
    rope = getattr(config, "rope_parameters", None) or {"rope_theta": 10000.0}
    rope = rope.get("full_attention", rope)
    found: dict[str, Any] = {"rope.freq_base": float(rope["rope_theta"])}
    if rope.get("rope_type") == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(rope.get("beta_fast", 32.0)),
            "rope.scaling.yarn_beta_slow": float(rope.get("beta_slow", 1.0)),
        }
        if "mscale_all_dim" in rope:
            tenth = 1.0 if config.model_type == "ministral3" else 0.1  # as their converters have it
            found["rope.scaling.yarn_log_multiplier"] = tenth * rope["mscale_all_dim"]
    return found
