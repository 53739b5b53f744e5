"""Whole architectures, assembled from the layers of `nn`. A family in `models/` is one of them with
a table of sizes.

Read it from the bottom up; each line imports only from the lines above it:

  design widths            the choices of an architecture as data, the variants of a family, and other widths of them
  build grid_stack         a stack made from a design, of tokens and of the patches of an image
  windows pooling placed   blocks that attend within windows, among pooled tokens, or with positions added to queries
  heads/                   outputs of hidden states: one file each, found by name
  architecture             the base of the text architectures
  encoder decoder encoder_decoder reader multi_token  of text; a reader is a decoder under an
  encoder's head image_encoder image_stages window_encoder pooling_encoder first_pooling_encoder
  hybrid_encoder  of images backbones/ conv_encoder  networks that make a map of an image, one file
  each, found by name, and a head on one dual_encoder detector    encoders of images and texts, and
  detectors retriever_reader         an encoder of queries and passages, and a model that reads both
"""
