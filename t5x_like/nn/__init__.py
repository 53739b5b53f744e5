"""Pure layers, from which every architecture is assembled.

Conventions: a layer is an `nnx.Module` used as a plain pytree (`nnx.set_graph_mode(False)`), built
  once from `nnx.Rngs` and called as a pure function. Everything that varies during a call (dropout
  keys, positions, masks, caches) is an argument; everything that varies between models is a
  different object chosen at construction.

Read it from the bottom up; each line imports only from the lines above it:

  dims params mask remat              sizes and their letters, parameters with named axes, masks, saved activations
  linear norm layer                   the matrix product, norms, the interface of every sublayer
  lora                                low-rank adapters, put on a model from outside
  positions/ image_positions/ cores/  position schemes and attention cores: one file each, found by
  name attention latent_attention cosine   attention, with keys and values from one vector a token,
  with cosines as logits feed_forward/ quantization/         feed-forward kinds, found by name;
  products of 8-bit factors, put on from outside embed block stack stacks pipeline   token
  embeddings, residual connections, identical blocks in one scan, its stages evened shared_stack
  projected_stack disentangled  padded for devices; shared parameters, projections, vectors
  hidden_states lstm two_stream       the states of several layers, LSTMs, attention in two streams
  convolution mbconv                  convolutions, CoAtNet's blocks vocabulary_logits decode
  logits computed in pieces, the state of decoding
"""

from flax import nnx

nnx.set_graph_mode(False)
