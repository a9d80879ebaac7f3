"""Several engines on one machine, each with a part of it, behind one gate: `corellm serve --data-parallel-size`.

`division` gives each engine its processors or GPU, `group` holds their processes as if they were one
and starts those again that end, `client` is what a server has, `offer` is the door it comes in by. Which engine a
request goes to, `placing` decides, by `routing`. Imports no torch before it is opened.
"""
