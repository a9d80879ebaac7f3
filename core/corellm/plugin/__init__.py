"""What plugins are installed, what they implement, and whether it is what `hookspecs` and `extension_hooks` say.

    adapters        which distribution serves which architecture
    contract        what an adapter must keep: versions, methods (`hookset`), attributes (`attributes`)
    extensions      what is not a family, by the hooks of `extension_hooks`
    manager         the hooks of one loaded model; `hook_callers` has their types

Knows entry points and pluggy; does not know what the hooks are for. Imports no torch.
"""
