"""The rules about outputs for one architecture, that of the environment variable `CORELLM_KIND`."""

from __future__ import annotations

import os

from corellm_transformers.contract import AnyModel


class TestKind(AnyModel):
    """Outputs are transformers' own."""

    architecture = os.environ["CORELLM_KIND"]
