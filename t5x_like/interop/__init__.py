"""Reading and writing the models of other libraries."""
