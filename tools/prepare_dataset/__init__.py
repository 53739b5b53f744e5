"""`python -m tools.prepare_dataset`: raw benchmark files as TensorFlow datasets."""
