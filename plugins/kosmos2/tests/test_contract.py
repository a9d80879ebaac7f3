"""Kosmos-2 keeps the contract."""

from corellm_kosmos2.contract import TestKosmos2 as TestKosmos2
