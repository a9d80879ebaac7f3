"""Florence-2 keeps the contract."""

from corellm_florence2.contract import TestFlorence2 as TestFlorence2
