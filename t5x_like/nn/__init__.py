"""Pure layers, from which every architecture is assembled.

A layer is an `nnx.Module` used as a plain pytree (`nnx.set_graph_mode(False)`), built once from
`nnx.Rngs` and called as a pure function. Everything that varies between calls (dropout keys,
positions, masks, caches) is an argument; everything that varies between models is a different
object chosen at construction.

The lowest layer comes first; each line imports only from the lines above it:

  dims params mask remat                  sizes and their letters, parameters with named axes, masks
  linear norm layer                       the matrix product, norms, the interface of every sublayer
  lora                                    low-rank adapters, added to a finished model
  positions/ image_positions/ cores/      position schemes and attention cores, found by name
  attention latent_attention cosine       attention, from one vector a token, with cosines as logits
  feed_forward/ quantization/             feed-forward kinds and 8-bit products, found by name
  embed block pipeline stack              token embeddings, residual connections, blocks in one scan
  two_part_stack length_padding           a stack in two parts, sequences padded for devices
  shared_stack                            shared parameters
  disentangled hidden_states              shared vectors of distances, the states of several layers
  two_stream                              attention in two streams
  convolution                             convolutions
  vocabulary_logits decode                logits computed in pieces, the state of decoding
"""

from flax import nnx

nnx.set_graph_mode(False)
