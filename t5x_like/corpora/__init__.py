"""Prepares stores of documents, examples and images from sources; a preparation can be resumed.

A job (`job.py`) is what to make, a kind, and where. An engine builds the parts of its source, in
any order, on one machine or many. From the bottom up:

    sources/        records of files, TensorFlow datasets and embedded corpora
    documents       the text of one field of the records
    cleaning/       steps that filter pages or remove duplicates, one a file
    job             the kinds of stores, their batches, and the job that makes one
    lost_characters          the characters that a vocabulary does not give back
    held_out        the documents of each split, or their parts
    tokens          the kind that pretraining reads; examples and images are under `data/`
    duplicates      the comparisons of all pages of a split, by group-bys
    building        a part's shards, their records, and the store that joins them
    engines/        local processes or Apache Beam, one a file
    preparing       the whole job, resumed after any interruption, with a progress bar
    corpus          a store for a recipe that names a source; `builtin` for one that names nothing

Training imports nothing of this: `data/task.py` finds `corpus` and `builtin` by name.
"""
