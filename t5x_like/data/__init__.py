"""Corpora, vocabularies, token stores and tasks: everything between text and batches. Imports no TensorFlow itself."""

# The version of the map from (task fingerprint, seed, step) to examples. Increment it when that map changes, so that no
# run resumes with different data. 2: the order of an epoch is our own permutation, not TensorFlow's. 3: windows
# begin at other tokens in every epoch, where the task's fingerprint says so.
EDITION = 3
