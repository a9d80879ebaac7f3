"""What corellm calls of this distribution: three commands. Imports no library of the server."""

from __future__ import annotations

import argparse

from corellm.hookspecs import hookimpl


class Commands:
    """`corellm serve`, `batch` and `bench`."""

    @hookimpl(tryfirst=True)  # before strangers: the first to register a name has it
    def register_commands(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the commands."""
        from corellm_server.commands import batch, bench, serve

        for command in (serve, batch, bench):
            command.add_parser(subparsers)
