"""Recipes: Python files with `get_config()` that read like their papers' hyper-parameter tables.

Options after a colon choose a variant of a recipe, as in `configs/t5/base.py:large`, or one of its
laptop forms: `:tiny` learns within minutes, `:debug` takes two steps without data; see
`t5x_like.recipes`.
"""
