"""The contract with plugins: what hooks there are, what is installed, and whether it follows the rules.

Adapters implement the hooks of `corellm.hookspecs`, the page their authors read; extensions implement those of
`extension_hooks`. Knows entry points and pluggy; does not know what the hooks are for. Imports no torch.
"""
