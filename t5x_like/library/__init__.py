"""The Python API, which `import t5x_like as t5x` names: trained models and the batches of a
task."""
