"""IDEFICS keeps the contract."""

from corellm_idefics.contract import TestIdefics as TestIdefics
