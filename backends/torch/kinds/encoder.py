"""Encoders of ``transformers``: ``config.json`` with safetensors, for embeddings and classification.

The architecture that the configuration names has to be one of the library's own; code that comes with a model is never
run. Inputs are token ids and masks, made by the client; outputs are what the model gives when it is asked.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from backends.declared import check_complete, narrow
from backends.errors import InvalidInput, LoadFailed
from backends.spec import ModelSpec, TensorSpec
from backends.torch.artifact import CONFIG, Artifact
from backends.torch.framework import import_part, torch
from backends.torch.options import Options
from backends.torch.program import Program

PLATFORM: Final = "pytorch_transformers"

_INSTALL: Final = "pip install transformers safetensors"
#: transformers' tables of the architectures that are served here.
_TABLES: Final = (
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
)
_IDS: Final = "input_ids"
_INPUTS: Final = (_IDS, "attention_mask", "token_type_ids")
_OUTPUTS: Final = ("last_hidden_state", "pooler_output", "logits", "start_logits", "end_logits")
#: Keys of a configuration with which it could choose code from elsewhere.
_CHOICES: Final = ("auto_map", "attn_implementation", "experts_implementation", "use_kernels", "kernel_config")
_POOLER: Final = "pooler."


def load(artifact: Artifact, spec: ModelSpec, chosen: Options, device: Any) -> Program:
    """Raises ``LoadFailed``: no encoder of the library, weights that do not fit it, what would run foreign code."""
    transformers = import_part("transformers", _INSTALL)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config, architecture = _configuration(artifact.path, transformers)
    dtype = getattr(torch, chosen.dtype) if chosen.dtype else "auto"
    model = _read(architecture, artifact.path, config, dtype).to(device).eval()
    return _program(model, config, spec, chosen, device)


# --- the model -----------------------------------------------------------------------------------------------------


def _configuration(folder: Path, transformers: Any) -> tuple[Any, Any]:
    """The configuration and the class that it names."""
    try:
        data = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise LoadFailed(f"{CONFIG} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise LoadFailed(f"{CONFIG} has no model_type: it is no configuration of transformers")
    if (folder / "adapter_config.json").exists():
        raise LoadFailed(f"{folder} holds an adapter: merge it into its model (merge_and_unload) and save the whole")
    if "quantization_config" in data:
        raise LoadFailed(f"{CONFIG} has a quantization_config, which needs code of other packages: save it in float")
    kind, names = data["model_type"], data.get("architectures") or [""]
    tables = import_part("transformers.models.auto.modeling_auto", _INSTALL)
    known = {name for table in _TABLES for name in _names(getattr(tables, table).get(kind))}
    name = names[0] if isinstance(names, list) else ""
    if name not in known or data.get("is_encoder_decoder") or data.get("is_decoder"):
        raise LoadFailed(_not_served(kind, name, sorted(known), "auto_map" in data))
    config = transformers.CONFIG_MAPPING[kind].from_dict(_without_choices(data))
    return config, getattr(transformers, name)


def _names(found: Any) -> tuple[str, ...]:
    return found if isinstance(found, tuple) else (found,) if found else ()


def _not_served(kind: str, name: Any, known: list[str], brings_code: bool) -> str:
    code = " It brings Python of its own (auto_map), which is never run." if brings_code else ""
    offer = f"it serves {', '.join(known)} of this type" if known else "it knows no encoder of this type"
    return (
        f"architecture {name!r} of type {kind!r} is none that this backend serves; {offer}.{code} Export other models "
        "with torch.export.save, or serve their class (options class and allow_code)"
    )


def _without_choices(data: Any) -> Any:
    if isinstance(data, dict):
        return {
            key: _without_choices(value)
            for key, value in data.items()
            if key not in _CHOICES and not key.startswith("_attn_") and not key.startswith("_experts_")
        }
    return [_without_choices(value) for value in data] if isinstance(data, list) else data


def _read(architecture: Any, folder: Path, config: Any, dtype: Any) -> Any:
    """The model with its weights, mapped from the file. Raises ``LoadFailed`` if some are missing."""
    model, missing = _from_pretrained(architecture, folder, config, dtype)
    if missing and all(_POOLER in f".{name}" for name in missing):
        # many models for embeddings are saved without the part that they do not use
        model, missing = _from_pretrained(architecture, folder, config, dtype, add_pooling_layer=False)
    if missing:
        shown = ", ".join(missing[:5])
        raise LoadFailed(
            f"the weights lack {len(missing)} tensor(s) of {architecture.__name__} ({shown}), which would be random: "
            f"set architectures in {CONFIG} to what was saved, or save the whole model"
        )
    return model


def _from_pretrained(
    architecture: Any, folder: Path, config: Any, dtype: Any, **arguments: Any
) -> tuple[Any, list[str]]:
    unreadable = import_part("safetensors", _INSTALL).SafetensorError
    try:
        model, told = architecture.from_pretrained(
            str(folder), config=config, dtype=dtype, local_files_only=True, use_safetensors=True,
            trust_remote_code=False, output_loading_info=True, **arguments,
        )  # fmt: skip
    except unreadable as error:
        raise LoadFailed(
            f"the weights of {folder.name} cannot be loaded ({error}): copy the whole file, or save the model again"
        ) from error
    return model, sorted(told["missing_keys"])


# --- the program ---------------------------------------------------------------------------------------------------


def _program(model: Any, config: Any, spec: ModelSpec, chosen: Options, device: Any) -> Program:
    inputs = _inputs(model)
    found = _outputs(model, device)
    narrowed = narrow("input", spec.inputs, inputs)
    check_complete((_IDS,), (tensor.name for tensor in narrowed))
    call = torch.compile(model, mode=chosen.compile, dynamic=True) if chosen.compile else model

    offered = frozenset(tensor.name for tensor in narrowed)

    def run(feeds: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
        answer = call(**_completed(feeds, offered) if chosen.compile else feeds)
        return {name: answer[name] for name in wanted}

    return Program(
        platform=PLATFORM,
        inputs=narrowed,
        outputs=narrow("output", spec.outputs, found),
        run=run,
        rows_apart=True,
        try_rows=False,
        check=_checker(model, config),
    )


def _completed(feeds: dict[str, Any], offered: frozenset[str]) -> dict[str, Any]:
    """The inputs with those that were left out: a program is compiled for each set of them."""
    ids = feeds[_IDS]
    if "attention_mask" in offered and "attention_mask" not in feeds:
        feeds = {**feeds, "attention_mask": torch.ones_like(ids)}
    if "token_type_ids" in offered and "token_type_ids" not in feeds:
        feeds = {**feeds, "token_type_ids": torch.zeros_like(ids)}
    return feeds


def _inputs(model: Any) -> list[TensorSpec]:
    taken = inspect.signature(model.forward).parameters
    if _IDS not in taken or getattr(model, "main_input_name", _IDS) != _IDS:
        raise LoadFailed(
            f"{type(model).__name__} does not take {_IDS}, and only models of text are served from {CONFIG}: export it "
            "with torch.export.save"
        )
    return [TensorSpec(name, "INT64", (-1, -1), optional=name != _IDS) for name in _INPUTS if name in taken]


def _outputs(model: Any, device: Any) -> list[TensorSpec]:
    """What the model gives, as two runs of different shapes show it; as FP32, which every client can read."""
    with torch.inference_mode():
        first, second = (_trial(model, device, rows, length) for rows, length in ((1, 2), (2, 3)))
    found = []
    for name in _OUTPUTS:
        if first.get(name) is None:
            continue
        shapes = zip(first[name].shape, second[name].shape, strict=True)
        found.append(TensorSpec(name, "FP32", tuple(a if a == b else -1 for a, b in shapes)))
    if not found:
        raise LoadFailed(
            f"{type(model).__name__} gives none of {', '.join(_OUTPUTS)}; export it with torch.export.save"
        )
    return found


def _trial(model: Any, device: Any, rows: int, length: int) -> Any:
    return model(**{_IDS: torch.ones(rows, length, dtype=torch.int64, device=device)})


def _checker(model: Any, config: Any) -> Any:
    """A check of ids and lengths, in words; an index out of range would also end every later run on a CUDA device."""
    tables = {_IDS: _rows(model, "word_embeddings") or config.get_text_config().vocab_size}
    types = _rows(model, "token_type_embeddings")
    if types:
        tables["token_type_ids"] = types
    longest = _longest(model)

    def check(arrays: Any) -> None:
        for name, size in tables.items():
            ids = arrays.get(name)
            # as unsigned numbers, negative ones are too large as well
            if ids is not None and ids.size and ids.view(np.uint64).max() >= size:
                wrong = ids[(ids < 0) | (ids >= size)].reshape(-1)[0]
                raise InvalidInput(f"input {name!r} holds {wrong}; the model knows 0 to {size - 1}")
        shape = arrays[_IDS].shape
        if longest is not None and len(shape) == 2 and shape[1] > longest:
            raise InvalidInput(f"input {_IDS!r} has {shape[1]} tokens in a row; the model takes up to {longest}")
        for name, array in arrays.items():
            if array.shape != shape:
                raise InvalidInput(f"input {name!r} has shape {list(array.shape)}, {_IDS!r} has {list(shape)}")

    return check


def _table(model: Any, name: str) -> Any:
    """The embedding of that name, if the model has one."""
    found = (inner for full, inner in model.named_modules() if full.rpartition(".")[2] == name)
    return next((inner for inner in found if isinstance(inner, torch.nn.Embedding)), None)


def _rows(model: Any, name: str) -> int | None:
    table = _table(model, name)
    return None if table is None else int(table.num_embeddings)


def _longest(model: Any) -> int | None:
    """The longest row, for models that count positions in a table; some begin to count after the padding's number."""
    table = _table(model, "position_embeddings")
    if table is None:
        return None
    first = 0 if table.padding_idx is None else int(table.padding_idx) + 1
    return int(table.num_embeddings) - first
