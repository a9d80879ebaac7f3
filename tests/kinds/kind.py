"""The rules about outputs, whatever the settings, for one architecture: that of the variable `CORELLM_KIND`."""

from __future__ import annotations

import os

from corellm_testing.contract.engine import EngineRules
from corellm_transformers.contract import AnyModel


class TestKind(AnyModel, EngineRules):
    """Outputs are transformers' own, whatever the engine does to save time or memory."""

    architecture = os.environ["CORELLM_KIND"]
