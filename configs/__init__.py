"""Recipes: each a Python file with `get_config()` that reads like the hyper-parameter table of its
paper.

Words after a colon choose a recipe's options, as in `configs/t5/base.py:large`, or one of the
laptop forms of every
recipe: `:tiny` learns within minutes, `:debug` takes two steps without data; see
  `t5x_like.recipes`.
"""
