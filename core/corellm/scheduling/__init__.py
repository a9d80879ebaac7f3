"""What each step computes, and where: requests, queues, blocks. Plain Python, without torch.

What a caller sends runs as `n` engine requests, one per completion: these are what `Request` means here. In reading
order:

    request             one sequence: prompt, output, why it ended; a `request_part` (`spans`) adds
                        what a kind of model needs, `part_around` what an extension does
    request_queue       requests that wait, by policy
    admission           which of them may start; `headroom` keeps blocks free for those that run
    scheduler           what the next step computes: a `step_plan`, which the worker takes as a `batch`
    block_manager       block tables; `block_pool` counts references, `block_hash` finds equal prefixes
    block_user          who else keeps blocks: `window_blocks`, and extensions
    encoder_plan        which encoders run in a step; `encoder_cache` knows whose outputs the worker has
"""
