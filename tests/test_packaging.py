"""The wheel holds what runs, says what it needs, and owns its three import names alone."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway.cli.tour.packages import MODEL_PACKAGES

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("backends", "gateway", "registry")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return table


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: list[str]) -> Message:
    (name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel is installed; the other packages come from this environment."""
    target = tmp_path_factory.mktemp("site")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    return target


def run(*arguments: str, cwd: Path | None = None, site: Path | None = None) -> str:
    """The standard output of this interpreter with these arguments; a failure shows both streams."""
    environment = os.environ | ({"PYTHONPATH": str(site)} if site else {})
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def written() -> Iterator[str]:
    """Every file of the three packages, as the wheel should name it."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix()


def test_the_wheel_has_three_packages_and_nothing_else_at_its_top(names: list[str]) -> None:
    assert {*PACKAGES, "tensorgate"} == {name.partition("/")[0].partition("-")[0] for name in names}


def test_every_file_of_the_packages_travels(names: list[str]) -> None:
    assert sorted(written()) == sorted(name for name in names if ".dist-info/" not in name)


@pytest.mark.parametrize("suffix", [".proto", ".binpb", ".pyi"])
def test_protocol_definitions_and_what_is_made_of_them_travel(names: list[str], suffix: str) -> None:
    assert [name for name in names if name.startswith("gateway/proto/") and name.endswith(suffix)]


def test_migrations_travel(names: list[str]) -> None:
    assert "registry/migrations/env.py" in names
    assert [name for name in names if name.startswith("registry/migrations/versions/") and name.endswith(".py")]


def test_the_metadata_names_every_extra_with_its_packages(metadata: Message, project: dict[str, Any]) -> None:
    wanted = project["project"]["optional-dependencies"]
    assert {"onnx", "torch", "tf", "trtllm", "gpu", "postgres", "s3"} <= wanted.keys()
    assert sorted(wanted) == sorted(metadata.get_all("Provides-Extra", []))
    required = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    for extra, packages in wanted.items():
        of_extra = {one.name for one in required if f'extra == "{extra}"' in str(one.marker)}
        assert {canonicalize_name(Requirement(package).name) for package in packages} == of_extra


def test_the_licence_travels(metadata: Message, names: list[str]) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]


def test_every_requirement_but_those_of_trtllm_is_pinned(project: dict[str, Any]) -> None:
    """What is installed is what was tested: constraints.txt has an exact version of each, inside its range."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {pin.name: pin.specifier for pin in map(Requirement, lines)}
    assert all(str(specifier).startswith("==") for specifier in pins.values())
    extras = [lines for name, lines in project["project"]["optional-dependencies"].items() if name != "trtllm"]
    groups = [project["dependency-groups"][name] for name in ("dev", "check", "test")]
    wanted = itertools.chain(project["project"]["dependencies"], *extras, *groups)
    for one in (Requirement(line) for line in wanted if isinstance(line, str)):
        if one.marker is None or one.marker.evaluate():
            version = str(pins[canonicalize_name(one.name)]).removeprefix("==")
            assert one.specifier.contains(version), f"{one} is pinned to {version}"


def test_the_model_packages_that_the_demo_looks_for_are_those_that_setup_installs(project: dict[str, Any]) -> None:
    assert set(MODEL_PACKAGES.values()) <= set(project["dependency-groups"]["models"])


def test_the_import_names_belong_to_this_distribution_alone(site: Path) -> None:
    code = "import importlib.metadata as m, json; print(json.dumps(m.packages_distributions()))"
    owners: dict[str, list[str]] = json.loads(run("-c", code, site=site))
    assert {package: ["tensorgate"] for package in PACKAGES} == {package: owners[package] for package in PACKAGES}


def test_the_installed_wheel_imports_from_where_it_was_installed(site: Path) -> None:
    code = f"import importlib; print(*(importlib.import_module(name).__file__ for name in {PACKAGES!r}), sep='\\n')"
    assert [str(site / name / "__init__.py") for name in PACKAGES] == run("-c", code, site=site).split()


def test_the_command_of_the_installed_wheel_runs(site: Path) -> None:
    code = """if True:
        import importlib.metadata, sys
        (command,) = importlib.metadata.entry_points(group="console_scripts", name="tensorgate")
        sys.argv = ["tensorgate", "--help"]
        command.load()()
    """
    assert "serve" in run("-c", code, site=site)
