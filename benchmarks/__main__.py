"""``python -m benchmarks`` is ``python -m benchmarks.serve``."""

import sys

from benchmarks.serve import main

sys.exit(main())
