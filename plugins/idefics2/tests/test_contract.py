"""Idefics2 keeps the contract."""

from corellm_idefics2.contract import TestIdefics2 as TestIdefics2
