"""One file per command, each with `add_parser(subparsers)`; `arguments` and `config_file` read a server's options."""
