"""Train a model: resolve a recipe, build its parts, and run the loop in a workdir."""
