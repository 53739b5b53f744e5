"""Record what each step of a run did in a chain of hashes, and verify the chain.

`chain.py` defines the file, `digests.py` the digests of batches and metrics, and `recorder.py` is
what a run calls. `history.py` reads a chain as the history of a run. `verification/` compares that
history with the data, the checkpoints and the metrics, and computes steps again.
"""
