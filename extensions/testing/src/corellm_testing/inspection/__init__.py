"""Shows an adapter's author each stage of one prompt.

`collect` runs the prompt and returns a `Report`, plain data; `terminal` and `page` show one.
"""
