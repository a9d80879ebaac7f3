"""The contract, from the checkout. From the installed wheel it is `pytest --pyargs corellm_patchtalker.contract`."""

from corellm_patchtalker.contract import TestPatchTalker

__all__ = ["TestPatchTalker"]
