"""What corellm calls of this distribution: three commands. Imports neither pytest nor torch."""

from __future__ import annotations

import argparse

from corellm.hookspecs import hookimpl


class Commands:
    """`corellm inspect`, `new-plugin` and `try`."""

    @hookimpl(tryfirst=True)  # before strangers: the first to register a name has it
    def register_commands(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the commands."""
        from corellm_testing.commands import inspect, new_plugin, try_model

        for command in (inspect, new_plugin, try_model):
            command.add_parser(subparsers)
