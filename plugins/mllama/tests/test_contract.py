"""Mllama keeps the contract."""

from corellm_mllama.contract import TestMllama as TestMllama
