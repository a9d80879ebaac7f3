"""One file per command, each with `add_parser(subparsers)`."""
