"""GIT keeps the contract."""

from corellm_git.contract import TestGit as TestGit
