"""Recipes: each a Python file with `get_config(arg)` that reads like the hyper-parameter table of its paper."""
