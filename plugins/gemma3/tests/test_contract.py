"""Gemma 3 keeps the contract."""

from corellm_gemma3.contract import TestGemma3 as TestGemma3
