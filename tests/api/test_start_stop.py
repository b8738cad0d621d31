"""The server's beginning and end: what keeps it from starting, signals, and the next start."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from support import onnx_models
from support.clients import PROTOCOLS, TRANSPORTS, floats, infer
from support.repository import add_echo, add_onnx
from support.rest import connect, http_call, index
from support.server import Server, running, started, wait_until

IDENTITY: Final = onnx_models.identity("FP32", ("length",))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one good model."""
    folder = tmp_path / "repository"
    add_onnx(folder, "good", IDENTITY)
    return folder


def failed_start(folder: Path, *arguments: str, repositories: tuple[Path, ...] = (), **environment: str) -> str:
    """What a server says that cannot start; it has to say it in few words and end with exit code 1."""
    with started(folder, *repositories, arguments=arguments, environment=environment) as server:
        code = server.process.wait()
        server.stop()
        assert code == 1, server.log
        assert "Traceback" not in server.log
        return server.log


# --- what keeps it from starting -------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port"])
def test_a_port_in_use_is_named_with_the_flag_that_changes_it(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        text = failed_start(tmp_path, flag, port)
    assert port in text
    assert flag in text
    assert "in use" in text


@pytest.mark.parametrize("port", ["70000", "-1", "http"])
def test_a_port_that_is_none_is_refused_by_name(tmp_path: Path, port: str) -> None:
    text = failed_start(tmp_path, "--http-port", port)
    assert "http_port" in text
    assert "65535" in text


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    text = failed_start(tmp_path, "--host", "192.0.2.1", "--insecure")
    assert "192.0.2.1" in text


def test_a_data_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The tests may run as root, who may write everywhere except below a file."""
    (tmp_path / "file").write_text("")
    text = failed_start(tmp_path / "file" / "below")
    assert str(tmp_path / "file" / "below") in text


def test_a_database_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(b"no database " * 1000)
    assert "registry.db" in failed_start(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("http_port = ", ["config.toml", "TOML"]),
        ("http_prot = 1", ["http_prot", "http_port"]),
        ("load_timeout_s = -1", ["load_timeout_s", "-1"]),
        ('log_level = "loud"', ["log_level", "loud", "warning"]),
        ("[interpreters]\nonxx = '/usr/bin/python'", ["interpreters", "onxx", "onnx"]),
        ("\xff", ["config.toml"]),
        (None, ["config.toml"]),
    ],
)
def test_a_bad_configuration_is_named_with_its_key_and_what_is_allowed(
    tmp_path: Path, content: str | None, words: list[str]
) -> None:
    config = tmp_path / "config.toml"
    if content is not None:
        config.write_bytes(content.encode("latin-1"))
    text = failed_start(tmp_path, "--config", str(config))
    for word in words:
        assert word in text


def test_a_bad_environment_variable_is_named(tmp_path: Path) -> None:
    text = failed_start(tmp_path, TENSORGATE_MAX_WAITING="none")
    assert "TENSORGATE_MAX_WAITING" in text
    assert "none" in text


@pytest.mark.parametrize("what", ["missing", "file"])
def test_a_repository_that_is_no_folder_is_named(tmp_path: Path, what: str) -> None:
    place = tmp_path / "models"
    if what == "file":
        place.write_text("")
    text = failed_start(tmp_path, repositories=(place,))
    assert str(place) in text
    assert "--model-repository" in text


def test_an_empty_repository_is_served(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with running(tmp_path, tmp_path / "models") as server:
        assert http_call(server, "GET", "/v2/models").json == {"models": []}
        assert http_call(server, "POST", "/v2/repository/index", b"").json == []


def test_slips_that_stop_nothing_are_told_at_the_start(tmp_path: Path, repository: Path) -> None:
    add_echo(repository, "parrot")
    slips = {"TENSORGATE_DRAIN_TIMEOUT": "1", "TENSORGATE_INTERPRETERS__ONNX": "/no/such/python"}
    with running(tmp_path, repository, ready=False, environment=slips) as server:
        server.wait_for_log("TENSORGATE_DRAIN_TIMEOUT is read by nothing .did you mean 'TENSORGATE_DRAIN_TIMEOUT_S'")
        server.wait_for_log("interpreters.onnx = /no/such/python does not exist or cannot be executed")
        server.wait_ready("parrot")
        server.wait_for_log("good:1 is failed after .*: cannot start /no/such/python")


# --- the end ---------------------------------------------------------------------------------------------------------


class Asking(threading.Thread):
    """One request from a client of its own; the answer, or the error."""

    def __init__(self, server: Server, protocol: str, parameters: dict[str, Any]) -> None:
        super().__init__()
        self.answer: Any = None
        self.error: Exception | None = None
        self._arguments = (protocol, server, "slow", floats(len(protocol)))
        self._parameters = parameters

    def run(self) -> None:
        """Ask."""
        try:
            self.answer = infer(*self._arguments, parameters=self._parameters).outputs["y"].tolist()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error


def slow_server(folder: Path, **environment: str) -> contextlib.AbstractContextManager[Server]:
    """A server with a model that takes as long as it is told, for many at a time."""
    add_echo(folder / "repository", "slow", instances=8)
    return running(folder, folder / "repository", environment=environment)


#: By this line the log tells that a request runs.
LINE: Final = {"print_bytes": 80}


def wait_for_requests(server: Server, count: int) -> None:
    """Until so many requests with ``LINE`` run."""
    server.wait(lambda: server.log.count("x" * 79) >= count, f"{count} requests to run")


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_are_answered_before_the_server_stops(tmp_path: Path, signal_number: int) -> None:
    with slow_server(tmp_path) as server:
        clients = [Asking(server, protocol, LINE | {"delay_ms": 300}) for protocol in PROTOCOLS]
        for client in clients:
            client.start()
        wait_for_requests(server, len(clients))
        assert server.stop(signal_number) == 0
        for client in clients:
            client.join()
    assert [client.error for client in clients] == [None] * len(clients)
    assert [client.answer for client in clients] == [[len(protocol)] for protocol in PROTOCOLS]


def test_a_server_that_stops_says_so_and_takes_no_new_requests(tmp_path: Path) -> None:
    with slow_server(tmp_path) as server:
        client = Asking(server, "rest", LINE | {"delay_ms": 2000})
        client.start()
        wait_for_requests(server, 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not server.is_ready(), "the server to be not ready")
        wait_until(lambda: not accepts(server.http) and not accepts(server.grpc), "both ports to be closed")
        assert client.is_alive()
        client.join()
        assert client.answer == [4]
        assert server.wait_stopped() == 0


def accepts(address: str) -> bool:
    """Whether anybody listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionError:
        return False
    return True


def test_a_request_that_never_ends_does_not_keep_the_server_from_stopping(tmp_path: Path) -> None:
    with slow_server(tmp_path, TENSORGATE_DRAIN_TIMEOUT_S="1") as server:
        clients = [Asking(server, protocol, LINE | {"hang": "true"}) for protocol in TRANSPORTS]
        for client in clients:
            client.start()
        wait_for_requests(server, len(clients))
        assert server.stop() == 0
        for client in clients:
            client.join()
            assert client.error is not None


def test_clients_that_only_keep_a_connection_open_do_not_keep_the_server(tmp_path: Path, repository: Path) -> None:
    with (
        running(tmp_path, repository, environment={"TENSORGATE_DRAIN_TIMEOUT_S": "1"}) as server,
        connect(server) as idle,
        connect(server) as slow,
    ):
        idle.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        slow.sendall(b"POST /v2/models/good/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert server.stop() == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    add_echo(tmp_path / "repository", "slow")
    with started(tmp_path, tmp_path / "repository") as server:
        server.wait_until_serving()
        server.wait_ready()
        client = Asking(server, "rest", LINE | {"hang": "true"})
        client.start()
        wait_for_requests(server, 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("stopping")
        assert server.stop() == -signal.SIGTERM
        client.join()
        assert client.error is not None


def test_a_server_that_is_killed_leaves_no_worker_behind(tmp_path: Path, repository: Path) -> None:
    add_echo(repository, "slow")
    with started(tmp_path, repository) as server:
        server.wait_until_serving()
        server.wait_ready()
        client = Asking(server, "rest", LINE | {"hang": "gil"})
        client.start()
        wait_for_requests(server, 1)
        workers = server.workers()
        assert set(workers) == {"good:1-0", "slow:1-0"}
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        client.join()
    wait_until(lambda: not any(psutil.pid_exists(worker.pid) for worker in workers.values()), "the workers to be gone")


def test_a_signal_while_models_load_stops_it_in_order(tmp_path: Path) -> None:
    add_echo(tmp_path / "repository", "loading", options={"load_hang": "true"})
    with running(
        tmp_path, tmp_path / "repository", ready=False, environment={"TENSORGATE_DRAIN_TIMEOUT_S": "1"}
    ) as server:
        server.wait(lambda: [entry["state"] for entry in index(server)] == ["LOADING"], "the model to load")


def test_the_server_lives_and_is_not_ready_while_its_repository_is_read(tmp_path: Path, repository: Path) -> None:
    """The digest of a model of many gigabytes takes minutes, and a liveness probe would end the server meanwhile."""
    add_onnx(repository, "huge", onnx_models.rubbish())
    with (repository / "huge" / "1" / "model.onnx").open("r+b") as file:
        file.truncate(2 << 30)  # sparse: it takes no room on the disk
    with started(tmp_path, repository) as server:
        server.wait_until_serving()
        assert index(server) == []
        assert not server.is_ready()
        server.wait_ready("good")


def test_a_signal_while_the_repository_is_read_ends_the_server_without_reading_the_rest(
    tmp_path: Path, repository: Path
) -> None:
    add_onnx(repository, "huge", onnx_models.rubbish())
    with (repository / "huge" / "1" / "model.onnx").open("r+b") as file:
        file.truncate(64 << 30)
    with running(tmp_path, repository, ready=False) as server:
        server.wait_for_log(r"good:1 \(onnx, \d+ bytes\) digested in")
        reply = http_call(server, "GET", "/v2/models/good")
        assert reply.status == 503
        assert "has yet to read its models" in reply.error
    assert "huge:1" not in server.log


@pytest.mark.parametrize(("strict", "ready"), [("true", False), ("false", True)])
@pytest.mark.parametrize("fault", ["artifact", "configuration"])
def test_what_cannot_be_served_counts_for_readiness_where_that_is_strict(
    tmp_path: Path, repository: Path, strict: str, ready: bool, fault: str
) -> None:
    add_onnx(repository, "broken", onnx_models.rubbish() if fault == "artifact" else IDENTITY)
    if fault == "configuration":
        (repository / "broken" / "config.pbtxt").write_text("no such thing {")
    environment = {"TENSORGATE_STRICT_READINESS": strict}
    with running(tmp_path, repository, ready=False, environment=environment) as server:
        server.wait_ready("good")
        server.wait_for_log(r"good:1 is ready after \d+\.\d\d s of loading")
        server.wait(lambda: any(entry["name"] == "broken" and entry.get("reason") for entry in index(server)), "it")
        assert server.is_ready() is ready


# --- the next start --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_same_database_serves_again(tmp_path: Path, repository: Path, end: int) -> None:
    with started(tmp_path, repository) as server:
        server.wait_until_serving()
        server.wait_ready("good")
        server.stop(end)
    with running(tmp_path, repository) as server:
        assert infer("rest", server, "good", floats(1)).outputs["y"].tolist() == [1]


def test_a_model_that_left_the_repository_is_gone_after_the_next_start_and_a_new_one_is_there(
    tmp_path: Path, repository: Path
) -> None:
    with running(tmp_path, repository) as server:
        assert server.is_ready("good")
    shutil.rmtree(repository / "good")
    add_onnx(repository, "new", onnx_models.add_one(("length",)))
    with running(tmp_path, repository) as server:
        assert [entry["name"] for entry in index(server) if entry["state"] == "READY"] == ["new"]
        assert infer("grpc", server, "new", floats(1)).outputs["y"].tolist() == [2]


def test_a_model_that_was_mended_is_served_after_the_next_start(tmp_path: Path, repository: Path) -> None:
    add_onnx(repository, "mended", onnx_models.rubbish())
    with running(tmp_path, repository, ready=False) as server:
        server.wait_ready("good")
        server.wait(lambda: any("no ONNX model" in entry.get("reason", "") for entry in index(server)), "it to fail")
    add_onnx(repository, "mended", IDENTITY)
    with running(tmp_path, repository) as server:
        assert infer("rest", server, "mended", floats(5)).outputs["y"].tolist() == [5]


def test_files_that_were_in_use_are_not_written(tmp_path: Path, repository: Path) -> None:
    """The repository is the operator's: serving it changes nothing in it."""
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}
    with running(tmp_path / "data", repository) as server:
        infer("rest", server, "good", floats(1))
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == before
