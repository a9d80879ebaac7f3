"""Batch files: requests from one file, results into another, in the same order.

Knows files in OpenAI's batch format. Requests go through the server's application, in this process and without a
socket, so a result is what the server would have responded; no endpoint is known here. In reading order: `input_file`
reads, `resuming` finds what is left to do, `running` does it by `transport`, `output_file` writes; `results` is what is
written, `progress` what is shown.
"""
