"""The embedded corpus: English technical prose from the docstrings of installed packages.

`extract.py` extracts and cleans the docstrings (standard library only); `builder.py` wraps it in a
TFDS builder.
"""
