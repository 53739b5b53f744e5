"""Pure layers, from which every model family is assembled.

Conventions: a layer is an `nnx.Module` used as a plain pytree (`nnx.set_graph_mode(False)`), built once from
`nnx.Rngs` and called as a pure function. Everything that varies during a call (dropout keys, positions, masks,
caches) is an argument; everything that varies between models is a different object chosen at construction.

Read it from the bottom up; each line imports only from those above it:

  dims params mask remat    sizes and their letters, parameters with named axes, attention masks, what is kept
  linear norm layer         the matrix product, the norms, the signature of every sublayer
  lora                      low-rank adapters, put on a model from outside
  positions/ image_positions/ cores/  position schemes and attention cores: one file each, found by its name
  attention mlp router moe  the sublayers
  embed block pipeline stack  token embeddings, residual connections, stages, identical blocks in one scan
  evened                    a stack over sequences evened out for devices
  design                    the choices of an architecture as data, and the variants of a family
  chosen                    a variant with a recipe's changes
  build                     from a design to a stack
  windows pooling placed    blocks that attend within windows, among what is pooled, or with places added to queries
  convolution backbones/ mbconv  convolutions, the networks that a detector begins with, CoAtNet's blocks
  vocabulary_logits heads/  from hidden states to outputs: one file each, found by its name
  unrolled                  a model as generation runs it, its kernels and layers made ready once
  decode architecture       the decoding state, what the three architectures share
  encoder decoder encoder_decoder image_encoder image_stages window_encoder pooling_encoder
  hybrid_encoder dual_encoder detector
  sampling generate beam_search
"""

from flax import nnx

nnx.set_graph_mode(False)
