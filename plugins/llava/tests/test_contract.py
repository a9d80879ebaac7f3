"""LLaVA keeps the contract."""

from corellm_llava.contract import TestLlava as TestLlava
