"""Stores: named ragged arrays of documents, examples or images, written once and read by index."""
