"""Heads of encoders, from hidden states to the outputs of a task; one file each.

A file's `make` takes the arguments that recipes give and, if its signature names them, `rngs`, the
`variant` and the `dropout_rate`. A head is called as `head(x_BTD, embed, valid_BT, key) -> dict`,
where `embed` is the token table (for tied heads) and `valid_BT` is False for padding. The result
has `logits`: float32, or `VocabularyLogits` if they are over the vocabulary.

Pretraining heads also take positions of tokens: `positions_BK` to predict, and `first_positions_BP`
where the sequences of a row begin. A head with an attribute `states` reads these hidden states side
by side instead of the last (`nn.hidden_states`). A head of images with an attribute
`batch_features` is called with these features of the batch.
"""
