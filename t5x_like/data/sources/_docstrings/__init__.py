"""The embedded corpus: English technical prose from the docstrings of installed packages; needs no download.

`extract.py` finds and cleans the docstrings (standard library only), `builder.py` is the TFDS builder over it.
"""
