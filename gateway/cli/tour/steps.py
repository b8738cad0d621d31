"""The steps of the tour that read: each asks over both protocols, prints the answers, and says if all were right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

import gateway
from gateway.cli.output import print_table
from gateway.cli.tour import filetypes, sentences
from gateway.cli.tour.calls import Caller
from gateway.cli.tour.packages import Packages

#: Sentences in pairs of one meaning: the nearest neighbour of each ought to be its partner.
SENTENCES: Final = (
    "A cat sleeps on the sofa.",
    "The kitten is napping on the couch.",
    "Interest rates rose again this quarter.",
    "The central bank made borrowing more expensive.",
    "How do I sort a list in Python?",
    "Ordering the elements of an array with code",
    "The train to Hamburg leaves at noon.",
    "At twelve o'clock a railway service departs for the coast.",
)


class Sample(msgspec.Struct, frozen=True):
    """A file, and the type that it is known to have."""

    path: Path
    label: str


def classify(caller: Caller, packages: Packages, database: Path | None) -> bool:
    """Tell the type of real files with magika; whether all were right and both protocols agreed."""
    model = filetypes.FileTypes(packages.magika)
    rows, right = [], True
    for sample in samples(packages.magika, database):
        both = caller.ask("magika", {"bytes": model.features(sample.path)[None]}, "target_label")
        verdict = model.verdict(both.rest.output[0])
        good = verdict.label == sample.label
        right = right and good and both.agree
        mark = "yes" if good else f"no, it is {sample.label}"
        rows.append([sample.path.name, verdict.label, f"{verdict.score:.3f}", mark, *both.figures])
    columns = ["file", "type", "score", "right", "REST ms", "gRPC ms", "same bits"]
    print_table(columns, rows, title=f"magika tells the type of {len(rows)} files by their content")
    return right


def compare(caller: Caller, packages: Packages) -> bool:
    """Embed real sentences with MiniLM; whether each found its partner and both protocols agreed."""
    inputs = sentences.Sentences(packages.tokenizer).inputs(list(SENTENCES))
    both = caller.ask("minilm", dict(inputs), sentences.OUTPUT)
    similarity, nearest = sentences.neighbours(sentences.embed(both.rest.output, inputs["attention_mask"]))
    _print_matrix(similarity)
    rows = [
        [text, SENTENCES[partner], f"{similarity[index, partner]:.2f}", "yes" if partner == index ^ 1 else "no"]
        for index, (text, partner) in enumerate(zip(SENTENCES, nearest, strict=True))
    ]
    print_table(["sentence", "nearest of the others", "cosine", "right"], rows, title="Nearest neighbours by meaning")
    shape, figures = list(both.rest.output.shape), both.figures
    columns = ["request", "answer", "REST ms", "gRPC ms", "same bits"]
    print_table(columns, [[f"{len(SENTENCES)} sentences", f"FP32 {shape}", *figures]], title="One request each way")
    return both.agree and all(partner == index ^ 1 for index, partner in enumerate(nearest))


def samples(magika: Path, database: Path | None) -> list[Sample]:
    """Files of known types: of this repository if it is there, and of what is installed in any case."""
    package = Path(gateway.__file__).parent
    root = package.parent
    candidates = [
        *_repository_samples(root),
        Sample(package / "cli" / "models.py", "python"),
        Sample(package / "proto" / "inference.proto", "proto"),
        Sample(magika / "models" / "standard_v3_3" / "config.min.json", "json"),
        Sample(magika / "models" / "standard_v3_3" / "README.md", "markdown"),
        Sample(magika / "models" / "standard_v3_3" / "model.onnx", "onnx"),
        Sample(Path(sys.executable).resolve(), "elf"),
        *([Sample(database, "sqlite")] if database else []),
    ]
    return [sample for sample in candidates if sample.path.is_file()]


def _repository_samples(root: Path) -> list[Sample]:
    if not (root / "pyproject.toml").is_file() or not (root / "Makefile").is_file():
        return []  # installed from a wheel
    known = {
        "pyproject.toml": "toml",
        "Makefile": "makefile",
        "Dockerfile": "dockerfile",
        "ARCHITECTURE.md": "markdown",
    }
    return [Sample(root / name, label) for name, label in known.items()]


def _print_matrix(similarity: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    numbers = [str(index + 1) for index in range(len(SENTENCES))]
    rows = [
        [f"{number} {text}", *(f"{value:5.2f}" for value in line)]
        for number, text, line in zip(numbers, SENTENCES, similarity, strict=True)
    ]
    print_table(["sentence", *numbers], rows, title="minilm: cosine similarity of the sentences")
