"""The adapter of text-only models keeps the contract."""

from corellm.text_models.contract import TestLlamaForCausalLM as TestLlamaForCausalLM
