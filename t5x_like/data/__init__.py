"""Corpora, vocabularies, token stores and tasks: everything between text and batches. Imports no TensorFlow itself."""
