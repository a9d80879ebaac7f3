"""Fuyu keeps the contract."""

from corellm_fuyu.contract import TestFuyu as TestFuyu
