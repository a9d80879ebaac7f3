"""Voxtral keeps the contract."""

from corellm_voxtral.contract import TestVoxtral as TestVoxtral
