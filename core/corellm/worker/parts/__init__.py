"""What runs beside the decoder in a step: a `StepPart` for each feature.

A model without a feature has no such part; `loading.features` makes those that it needs.

    step_part        when a part is called
    windows          blocks' places in layers that see a window
    spans            which tokens of a prompt see later ones
"""
