"""Stores: named ragged arrays of documents, examples or images, written once, checked, and read by
index."""
