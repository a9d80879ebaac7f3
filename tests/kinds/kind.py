"""The rules about outputs, whatever the settings, for the architectures that the variable `CORELLM_KIND` names."""

from __future__ import annotations

import os

from corellm_testing.contract.engine import EngineRules
from corellm_transformers.contract import AnyModel


class Kind(AnyModel, EngineRules):
    """Outputs are transformers' own, whatever the engine does to save time or memory."""


for _architecture in os.environ["CORELLM_KIND"].split(","):
    globals()[f"Test{_architecture}"] = type(f"Test{_architecture}", (Kind,), {"architecture": _architecture})
