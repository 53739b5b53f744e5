"""Heads of encoders: from the last hidden states to the answers of a task. One file each; its name is the head's.

A file's `make` is called with what a recipe says of the head and, of the following, with what it names: `rngs`, the
`variant` and its `dropout_rate`. A head is called as `head(x_BTD, embed, valid_BT, key) -> dict`, where `embed` is the
token table (tied heads read it) and `valid_BT` tells tokens from padding; what it returns has `logits`, float32.
"""
