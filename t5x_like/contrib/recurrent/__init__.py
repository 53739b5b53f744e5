"""Recurrent baselines: GPT-1's LSTM language model, and BERT's features read by an LSTM.

`lstm` has the layers of the family `lstm` and of the head `bilstm`.
"""
