"""Preprocessors, one a file: from windows or records to features."""

OWN = "own_preprocessor-"  # begins the name scope of a user's preprocessor, see `own.py`
