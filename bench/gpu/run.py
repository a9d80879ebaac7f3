"""Everything that is asked of the GPU, in one command of under ten minutes: `python bench/gpu/run.py`."""

from __future__ import annotations

import sys
from pathlib import Path

# instead of this folder: its modules are found as bench.gpu, and hide nobody else's of their names
sys.path[0] = str(Path(__file__).resolve().parents[2])

if __name__ == "__main__":
    from bench.gpu.command import main

    sys.exit(main())
