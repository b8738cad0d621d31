"""Ask a model over REST, with nothing but the standard library. Usage: rest_client.py [URL] [MODEL]"""

from __future__ import annotations

import json
import struct
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LENGTH = "Inference-Header-Content-Length"


def ask_as_json(url: str, model: str, name: str, values: list[int]) -> list[float]:
    """One INT32 input as JSON; the first output's values."""
    tensor = {"name": name, "datatype": "INT32", "shape": [1, len(values)], "data": values}
    with _post(url, model, json.dumps({"inputs": [tensor]}).encode(), {}) as answer:
        data: list[float] = json.load(answer)["outputs"][0]["data"]
    return data


def ask_as_binary(url: str, model: str, name: str, values: list[int]) -> list[float]:
    """The same with binary tensors in both directions: the body is a JSON head and the bytes behind it."""
    raw = struct.pack(f"<{len(values)}i", *values)
    tensor: dict[str, Any] = {"name": name, "datatype": "INT32", "shape": [1, len(values)]}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    with _post(url, model, head + raw, {LENGTH: str(len(head))}) as answer:
        body = answer.read()[int(answer.headers[LENGTH]) :]
    return list(struct.unpack(f"<{len(body) // 4}f", body))


def _post(url: str, model: str, body: bytes, headers: dict[str, str]) -> Any:
    """The answer, open. Ends the program with the server's own words if it refuses: ``{"error": ...}``."""
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", body, headers)
    try:
        return urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        with error:
            sys.exit(f"{url} answered {error.code}: {error.read().decode(errors='replace')}")
    except (OSError, HTTPException) as error:
        sys.exit(f"no answer over HTTP from {url} ({error!r}): is a server there, and is that its REST port?")


def class_name(number: int) -> str:
    """What magika calls a class, from its package if that is installed here; it is found, and not imported."""
    spec = find_spec("magika")
    if spec is None or spec.origin is None:
        return "no magika package here to name it"
    config = json.loads((Path(spec.origin).parent / "models/standard_v3_3/config.min.json").read_text())
    return str(config["target_labels_space"][number])


def main() -> None:
    """Ask magika (registered as in the README) what a small Python file looks like, in both forms."""
    url, model = (*sys.argv[1:], *("http://127.0.0.1:8000", "magika")[len(sys.argv) - 1 :])
    values = [*b"import os\nimport sys\n", *[256] * 2028][:2048]
    as_json, as_binary = (ask(url, model, "bytes", values) for ask in (ask_as_json, ask_as_binary))
    best = max(range(len(as_binary)), key=as_binary.__getitem__)
    scores = f"{as_binary[best]:.3f} (as JSON: {as_json[best]:.3f})"
    print(f"{model}: class {best} of {len(as_binary)}, {class_name(best)}, with {scores}")


if __name__ == "__main__":
    main()
