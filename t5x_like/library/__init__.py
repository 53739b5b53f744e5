"""The Python API of `import t5x_like as t5x`: trained models and the batches of a task."""
