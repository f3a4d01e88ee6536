"""How far hypothesis searches: the same inputs in each ordinary run, or as many new ones as ANYFUSE_PROPERTIES says.

    ANYFUSE_PROPERTIES=20000 python -m pytest tests/test_properties.py tests/test_fuzz_manifest.py

The seed of a longer search is printed at the end of the run; ANYFUSE_SEED repeats it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, seed, settings

EXAMPLES = int(os.environ.get("ANYFUSE_PROPERTIES", "0"))
SEED = int(os.environ.get("ANYFUSE_SEED") or secrets.randbits(32))


def search(examples: int) -> Callable[[Any], Any]:
    """A decorator above `given`: the number of examples of an ordinary run."""
    chosen = settings(
        max_examples=EXAMPLES or examples,
        derandomize=EXAMPLES == 0,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: chosen(seed(SEED)(test) if EXAMPLES else test)
