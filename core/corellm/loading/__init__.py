"""From a model's name to an engine's parts. In reading order:

    locating            files and plugin of a name; with `recommended_sampling`
    opening             configuration, tokenizer and hooks, without weights; with `checkpoint`, `config_overrides`,
                        `remote_code`, `deferred_imports`, `missing_torchvision`
    model_parts         the model with its weights; with `packed_linear`, `weight_key`
    decoder_probe       checks that the text decoder is what the engine takes it for; with `attended_states`, `rope`
    loading             all of it, in the sizes that `sizing` plans and `dummy_steps` measure

`features` says which parts of the engine a model needs, `model_use` what it is run for.
"""
