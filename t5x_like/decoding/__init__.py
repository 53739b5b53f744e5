"""Generation from decoders and encoder-decoders: a compiled loop over tokens.

The lowest layer comes first; each line imports only from the lines above it:

  sampling         transforms of the logits: temperature, top-k, top-p, forced tokens, min length
  penalties        transforms that read the tokens so far: repetitions, banned words
  transforms       transforms by the names of flags and recipes
  stops            ends of rows at strings of text
  cpu unrolled     a model's layers and kernels, prepared once for a loop over tokens
  generate         greedy search and sampling
  beam_search      the best of several hypotheses
"""
