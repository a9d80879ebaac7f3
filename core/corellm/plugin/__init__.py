"""The contract with plugins: what hooks there are, what is installed, and whether it keeps to the rules.

Adapters answer the hooks of `corellm.hookspecs`, the page their authors read; extensions answer those of
`extension_hooks`. Knows entry points and pluggy; does not know what the hooks are for. Imports no torch.
"""
