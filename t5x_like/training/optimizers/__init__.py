"""Optimizers, one a file, whose `Arguments` are the keys of `config.optimizer`."""
