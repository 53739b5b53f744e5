"""Read and write the models of other libraries."""
