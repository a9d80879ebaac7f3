"""Models that give vectors, classes, scores and rewards: what runs as which, conversion, poolers, their runner.

`settings` is light and always loaded; everything else is imported when a model is loaded for pooling.
"""
