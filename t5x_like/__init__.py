"""t5x_like: pretraining of Transformers in JAX, from a laptop CPU to a TPU pod slice."""
