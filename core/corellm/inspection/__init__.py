"""What an adapter did to one prompt, step by step: for its author, who debugs a layout.

`collect` runs the prompt and gives a `Report`, plain data; `terminal` and `page` show one.
"""
