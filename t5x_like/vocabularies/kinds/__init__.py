"""Kinds of vocabularies, one a file, found by name.

Each `load(directory, manifest)` opens a directory that `save` of its kind wrote. `sentencepiece`
and `published` also `read` files made elsewhere.
"""
