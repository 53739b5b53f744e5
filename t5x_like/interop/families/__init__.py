"""Read and write one family of Hugging Face model types in each module.

A module defines `TYPES`, a tuple of `config_table.ModelType`: the tables of its model types. The
original type of a model is tried first when it is written, then the others in their order.
"""
