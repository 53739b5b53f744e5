"""Preparation of a token store from a source: cleaning, deduplication and tokenisation, in parts for any machine."""
