"""The administration API of a real server: models, workers, the key, and problems in one form whatever raised them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from litestar import Litestar, get

from gateway.rest.problem import problem_handler
from support import onnx_models
from support.admin import admin_client, admin_key
from support.repository import add_echo
from support.server import PATIENCE_S, Server, running

WAIT: Final = {"wait": PATIENCE_S}


class Admin:
    """A client with the key of its server."""

    def __init__(self, server: Server, data: Path) -> None:
        self.server = server
        self.key = admin_key(data)
        self.http = admin_client(server, data)

    def register(self, model: str, **fields: Any) -> httpx.Response:
        """POST a version of the model, and wait until it is ready or failed."""
        return self.http.post(f"/models/{model}/versions", json={"artifact": "echo:"} | fields, params=WAIT)


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    repository = tmp_path_factory.mktemp("admin-repository")
    add_echo(repository, "from_folder")
    (repository / "hollow").mkdir()
    data = tmp_path_factory.mktemp("admin-data")
    with running(data, repository, ready=False) as server:
        client = Admin(server, data)
        yield client
        client.http.close()


def problem(response: httpx.Response, status: int) -> str:
    """The detail, if the answer is a problem of that status in its full form."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body.keys() == {"type", "title", "status", "detail", "instance"}
    assert body["status"] == status
    assert body["instance"] == response.request.url.path
    return str(body["detail"])


def test_a_model_is_registered_shown_unloaded_and_loaded(admin: Admin, tmp_path: Path) -> None:
    folder = onnx_models.save(onnx_models.add_one(), tmp_path / "adder")
    answer = admin.register("adder", artifact=str(folder / "model.onnx"), config={"max_batch_size": 4})
    assert answer.status_code == 201
    assert answer.headers["location"] == "/admin/v1/models/adder/versions/1"
    added = answer.json()
    assert (added["version"], added["framework"], added["state"], added["desired"]) == (1, "onnx", "ready", True)
    assert [(t["name"], t["datatype"]) for t in added["signature"]["inputs"]] == [("x", "FP32")]
    assert admin.server.is_ready("adder")
    shown = admin.http.get("/models/adder").json()
    assert [version["digest"] for version in shown["versions"]] == [added["digest"]]

    unloaded = admin.http.post("/models/adder/versions/1/unload", params=WAIT)
    assert (unloaded.status_code, unloaded.json()["state"], unloaded.json()["desired"]) == (200, "unloaded", False)
    assert not admin.server.is_ready("adder")
    loaded = admin.http.post("/models/adder/versions/1/load", params=WAIT)
    assert (loaded.status_code, loaded.json()["state"], loaded.json()["desired"]) == (200, "ready", True)
    assert admin.server.is_ready("adder")


def test_without_waiting_a_load_is_accepted_and_goes_on(admin: Admin) -> None:
    assert admin.register("later", deploy=False).json()["state"] == "unloaded"
    answer = admin.http.post("/models/later/versions/1/load")
    assert answer.status_code in (200, 202)
    admin.server.wait_ready("later")


def test_numbers_count_up_and_the_same_version_again_is_the_same(admin: Admin) -> None:
    first = admin.register("counted", version=7).json()
    assert admin.register("counted").json()["version"] == 8
    again = admin.register("counted", version=7)
    assert (again.status_code, again.json()["created_at"]) == (201, first["created_at"])
    detail = problem(admin.register("counted", version=7, config={"max_batch_size": 3}), 409)
    assert "exists and differs: config.max_batch_size is unset there and 3 here. " in detail


def test_repository_models_are_listed_with_what_could_not_be_served(admin: Admin) -> None:
    answer = admin.http.get("/models").json()
    (model,) = (model for model in answer["models"] if model["name"] == "from_folder")
    assert (model["versions"][0]["source"], model["versions"][0]["state"]) == ("repository", "ready")
    assert [(entry["name"], entry["version"]) for entry in answer["problems"]] == [("hollow", None)]


def test_an_artifact_that_cannot_be_loaded_is_refused_and_not_kept(admin: Admin, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.onnx"
    rubbish.write_text("this is no model")
    assert "the artifact cannot be served: rubbish.onnx is no ONNX model" in problem(
        admin.register("rubbish", artifact=str(rubbish)), 400
    )
    problem(admin.http.get("/models/rubbish"), 404)


def test_a_restarted_worker_is_another_process_and_the_model_comes_back(admin: Admin) -> None:
    before = admin.register("restarted").json()["workers"][0]
    answer = admin.http.post(f"/workers/{before['id']}/restart")
    assert answer.status_code == 202

    def replaced() -> bool:
        (worker,) = (w for w in admin.http.get("/workers").json()["workers"] if w["model"] == "restarted")
        return bool(worker["state"] == "ready" and worker["pid"] != before["pid"] and worker["restarts"] == 1)

    admin.server.wait(replaced, "another worker")
    admin.server.wait_ready("restarted")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"artifact": "echo:", "alias": "x"}, "unknown field `alias`"),
        ({}, "missing required field `artifact`"),
        ({"artifact": 3}, "artifact: Expected `str`, got `int`"),
        ({"artifact": "echo:", "version": "one"}, "version: Expected `int | null`, got `str`"),
        ({"artifact": "echo:", "version": 0}, "version 0 of model 'bad': numbers go from 1"),
        ({"artifact": "echo:", "version": 2**63}, "numbers go from 1"),
        ({"artifact": "echo:", "config": []}, "config: Expected `object | null`, got `array`"),
        ({"artifact": "echo:", "config": {"max_batch": 1}}, "max_batch"),
        ({"artifact": ""}, "artifact '' is empty"),
        ({"artifact": "/no/such/model.onnx"}, "/no/such/model.onnx does not exist"),
        ({"artifact": __file__}, "its framework cannot be told from its name; give framework, one of onnx, "),
        ({"artifact": __file__, "framework": "echo"}, "the framework echo runs no artifact and would ignore it"),
        ({"artifact": __file__, "framework": "abacus"}, "framework 'abacus' is not known; one of echo, "),
        ([], "Expected `object"),
        (None, "the body is empty"),
    ],
)
def test_a_body_that_is_not_acceptable_is_told_by_field(admin: Admin, body: object, said: str) -> None:
    answer = admin.http.post("/models/bad/versions", content=json.dumps(body))
    assert said in problem(answer, 400)


@pytest.mark.parametrize(
    ("content", "said"), [(b'{"artifact"', "truncated"), (b"", "the body is empty"), (b"\xff", "")]
)
def test_a_body_that_is_no_json_is_refused(admin: Admin, content: bytes, said: str) -> None:
    assert said in problem(admin.http.post("/models/bad/versions", content=content), 400)


def test_a_body_over_the_limit_is_refused(admin: Admin) -> None:
    answer = admin.http.post("/models/bad/versions", content=b" " * (1 << 20) + b"{}")
    assert "1 MiB" in problem(answer, 413)


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/models/unknown", 404, "there is no model 'unknown'"),
        ("GET", "/models/from_folder/versions/2", 404, "no version 2"),
        ("POST", "/models/from_folder/versions/2/load", 404, "has no version 2"),
        ("POST", "/models/unknown/versions/1/unload", 404, "there is no model 'unknown'"),
        ("GET", "/models/from_folder/versions/one", 400, "version 'one' in the URL is not a version's number"),
        ("GET", f"/models/from_folder/versions/{'9' * 400}", 400, "is not a version's number"),
        ("POST", "/models/from_folder/versions/1/load?wait=soon", 400, "wait: Expected `float`"),
        ("POST", "/models/from_folder/versions/1/load?wait=-1", 400, "wait: Expected `float` >= 0"),
        ("POST", "/workers/nobody/restart", 404, "there is no worker 'nobody'"),
        ("GET", "/nothing", 404, "there is no /admin/v1/nothing"),
        ("GET", "", 404, "there is no /admin/v1"),
        ("DELETE", "/models", 405, "/admin/v1/models does not take DELETE: use"),
        ("GET", "/workers/nobody/restart", 405, "does not take GET: use"),
    ],
)
def test_every_refusal_is_a_problem_that_says_what(
    admin: Admin, method: str, path: str, status: int, said: str
) -> None:
    assert said in problem(admin.http.request(method, path), status)


def test_a_name_may_hold_what_a_url_has_to_escape(admin: Admin) -> None:
    answer = admin.register("a%20name%20%C3%BC%3F")
    assert (answer.status_code, answer.json()["model"]) == (201, "a name ü?")
    assert admin.http.get("/models/a%20name%20%C3%BC%3F").json()["name"] == "a name ü?"


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "a key is needed"),
        ({"Authorization": "Bearer"}, "a key is needed"),
        ({"Authorization": "Basic dXNlcjpwYXNz"}, "a key is needed"),
        ({"Authorization": "Bearer wrong"}, "the key is not"),
        ({"X-API-Key": "wrong"}, "the key is not"),
        ({"X-API-Key": ""}, "the key is not"),
        ({"X-API-Key": "schlüssel"}, "the key is not"),
    ],
)
def test_without_the_key_nothing_is_answered(admin: Admin, headers: dict[str, str], said: str) -> None:
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    for method, path in (("GET", "/models"), ("POST", "/models/x/versions"), ("POST", "/workers/x/restart")):
        answer = httpx.request(method, f"{admin.server.url}/admin/v1{path}", headers=encoded, trust_env=False)
        assert said in problem(answer, 401)
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("scheme", ["Bearer {}", "bearer  {}"])
def test_the_key_is_taken_in_either_header(admin: Admin, scheme: str) -> None:
    url = f"{admin.server.url}/admin/v1/models"
    assert httpx.get(url, headers={"Authorization": scheme.format(admin.key)}, trust_env=False).status_code == 200
    assert httpx.get(url, headers={"X-API-Key": admin.key}, trust_env=False).status_code == 200


def test_the_log_says_where_the_key_is_and_never_the_key(admin: Admin) -> None:
    assert "admin.key" in admin.server.log
    assert admin.key not in admin.server.log


def test_the_api_is_described(admin: Admin) -> None:
    described = httpx.get(f"{admin.server.url}/schema/openapi.json", trust_env=False).json()
    assert "/admin/v1/models/{model}/versions" in described["paths"]
    assert "artifact" in json.dumps(described["components"])


async def test_a_fault_of_ours_is_a_problem_that_gives_nothing_away(caplog: pytest.LogCaptureFixture) -> None:
    @get("/admin/v1/boom")
    async def boom() -> None:
        raise RuntimeError("a secret")

    app = Litestar([boom], exception_handlers={Exception: problem_handler}, logging_config=None)
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        detail = problem(await client.get("/admin/v1/boom"), 500)
    assert "secret" not in detail
    assert "a secret" in caplog.text
