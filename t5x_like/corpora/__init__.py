"""Prepare stores of documents, examples and images from sources; a preparation can be resumed.

A job (`job.py`) has the kind and the path of a store. An engine builds the parts of the job's
source in any order, on one machine or many. The modules, from the bottom up:

    sources/        records of files, TensorFlow datasets and embedded corpora
    documents       the text of one field of the records
    cleaning/       steps that filter pages or remove duplicates, one a file
    job             the kinds of stores, their batches, and the job that makes one
    lost_characters characters that a vocabulary cannot restore
    held_out        the documents, or parts of a document, of each split
    tokens          the kind that pretraining reads; examples and images are under `data/`
    duplicates      comparisons of all pages of a split, to mark duplicates
    building        the shards of each part, and the store that joins all parts
    engines/        local processes or Apache Beam, one a file
    preparing       whole jobs, resumed after any interruption, with a progress bar
    corpus          the store of a recipe that names a source
    builtin         the tiny built-in store, for a recipe that names neither store nor source

Training does not import this package: `data/task.py` finds `corpus` and `builtin` by name.
"""
