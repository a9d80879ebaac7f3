"""Layers that keep a state of each sequence, for corellm: transformers' own code of them, in chunks and batches.

kept            what a load asks for: the modules of one decoder
widths          how wide their input is
checking        whether they can go on with a prompt's chunks, and with sequences together
mixer           one module, on states that it is given
segments        which tokens of a prompt are one call, and where its chunks end
snapshots       which states are kept for the prefix cache
rows, states    where the states of all sequences are, and a step's part that splits its batch by them
"""
