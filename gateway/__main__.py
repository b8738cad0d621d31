"""``python -m gateway`` is the command ``tensorgate``."""

from __future__ import annotations

from gateway.cli.main import run

if __name__ == "__main__":
    run()
