"""What holds for every test: no setting of the caller's environment leaks in, and generated examples repeat in CI."""

from __future__ import annotations

import os

import hypothesis

for _name in [name for name in os.environ if name.startswith("TENSORGATE_")]:
    del os.environ[_name]

# No deadline: how long one example takes says more about the machine than about the code.
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")
