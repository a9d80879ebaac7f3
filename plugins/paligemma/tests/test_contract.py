"""PaliGemma keeps the contract."""

from corellm_paligemma.contract import TestPaliGemma as TestPaliGemma
