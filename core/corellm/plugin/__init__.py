"""Finds installed plugins, checks that they keep the contract, and makes the hooks of a loaded model.

    adapters        which distribution serves which architecture
    contract        checks of an adapter's class: version, methods (`hookset`), attributes (`attributes`)
    manager         makes the plugin manager of one loaded model; `hook_callers` has the types of its hooks
    extensions      plugins that are no model family; their hooks are in `extension_hooks`

`distributions` and `tracebacks` are for error messages. `hookspecs` has the hooks of adapters.

Knows entry points and pluggy; does not know what the hooks are for. Imports no torch.
"""
