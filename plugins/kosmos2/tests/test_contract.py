"""Kosmos-2 and Kosmos-2.5 keep the contract."""

from corellm_kosmos2.contract import TestKosmos2 as TestKosmos2
from corellm_kosmos2.kosmos2_5.contract import TestKosmos2_5 as TestKosmos2_5
