"""How each server of the comparison is configured and started; all listen on loopback only."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.home import REPOSITORY, Home
from benchmarks.models import (
    Tuning,
    model_files,
    write_mlserver_folder,
    write_onnx_repository,
    write_python_repository,
)

HOST = "127.0.0.1"


class ServerError(Exception):
    """A server did not start; the message ends with its log."""


@dataclass(frozen=True)
class Ports:
    http: int
    grpc: int
    metrics: int


@dataclass(frozen=True)
class Launch:
    """What to execute, and what its environment has besides ours."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """Everything a launcher may depend on; ``folder`` is this server's own and empty."""

    home: Home
    folder: Path
    tuning: Tuning
    ports: Ports
    extra_arguments: list[str]


def tensorgate_command() -> str | None:
    """The command installed beside the running interpreter."""
    return shutil.which("tensorgate", path=str(Path(sys.executable).parent))


def tensorgate(setting: Setting) -> Launch:
    command = tensorgate_command()
    if command is None:
        raise ServerError(f"no tensorgate command beside {sys.executable}")
    repository = setting.folder / "repository"
    write_onnx_repository(repository, model_files(setting.home), setting.tuning)
    ports = ["--http-port", str(setting.ports.http), "--grpc-port", str(setting.ports.grpc)]
    database = f"sqlite:///{setting.folder / 'registry.db'}"
    state = ["--model-repository", str(repository), "--database", database]
    return Launch([command, "serve", "--host", HOST, *ports, *state, *setting.extra_arguments])


def mlserver(setting: Setting) -> Launch:
    """MLServer with the model in the server process."""
    return launch_mlserver(setting, workers=0)


def mlserver_pool(setting: Setting) -> Launch:
    """MLServer with its pool of worker processes, one per execution at a time."""
    return launch_mlserver(setting, workers=setting.tuning.instances)


def launch_mlserver(setting: Setting, workers: int) -> Launch:
    settings: dict[str, object] = {
        "host": HOST,
        "http_port": setting.ports.http,
        "grpc_port": setting.ports.grpc,
        "metrics_port": setting.ports.metrics,
        "metrics_endpoint": None,
        "parallel_workers": workers,
        "debug": False,
        "grpc_max_message_length": 64 << 20,
    }
    folder = setting.folder / "models"
    write_mlserver_folder(folder, model_files(setting.home), setting.tuning, settings)
    command = setting.home.venv("mlserver") / "bin" / "mlserver"
    return Launch([str(command), "start", str(folder)], {"PYTHONPATH": str(REPOSITORY)})


def triton(setting: Setting) -> Launch:
    """The server binary carried by the nvidia-pytriton wheel, with its Python backend.

    Its stub loads whichever libpython comes first in LD_LIBRARY_PATH, which has to be the one of
    the interpreter that the environment was made with.
    """
    repository = setting.folder / "repository"
    write_python_repository(repository, model_files(setting.home), setting.tuning)
    packages = setting.home.site_packages("triton")
    libraries = [packages / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
    command = [
        str(packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={setting.home.triton_backends}",
        *(f"--http-address={HOST}", f"--http-port={setting.ports.http}"),
        *(f"--grpc-address={HOST}", f"--grpc-port={setting.ports.grpc}"),
        *("--allow-metrics=false", "--allow-gpu-metrics=false"),
    ]
    environment = {
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "BENCH_PYTHONPATH": os.pathsep.join([str(packages), str(REPOSITORY)]),
    }
    return Launch(command, environment)


@dataclass(frozen=True)
class Engine:
    """A kind of server.

    ``extensions``: it speaks Triton's, of which the binary tensors are one and the model's
    configuration, which perf_analyzer asks for, is another.
    """

    name: str
    launch: Callable[[Setting], Launch]
    offers: Callable[[Tuning], bool]
    extensions: bool = True


def any_tuning(_: Tuning) -> bool:
    return True


def batches_by_time_only(tuning: Tuning) -> bool:
    """MLServer takes a batch size without a waiting time for a mistake and does not batch."""
    return tuning.max_batch == 0 or tuning.queue_delay_s > 0


def runs_in_event_loop(tuning: Tuning) -> bool:
    """Without its pool, MLServer runs one call at a time."""
    return tuning.instances == 1 and batches_by_time_only(tuning)


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("tensorgate", tensorgate, any_tuning),
        Engine("mlserver", mlserver, runs_in_event_loop, extensions=False),
        Engine("mlserver-pool", mlserver_pool, batches_by_time_only, extensions=False),
        Engine("triton", triton, any_tuning),
    )
}
