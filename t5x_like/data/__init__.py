"""Corpora, vocabularies, token stores and tasks: everything between text and batches. Imports no TensorFlow itself."""

# Which examples a step holds, given a task's fingerprint, the seed and the step. It counts up when they become others,
# so that no run goes on half-way with other data. 2: the order of an epoch is our own permutation, not TensorFlow's.
EDITION = 2
