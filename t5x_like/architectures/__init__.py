"""Whole architectures, assembled from the layers of `nn`.

A family in `models/` is one of them with a table of sizes. The lowest layer comes first; each line
imports only from the lines above it:

  design           the choices of an architecture as data
  widths           a variant scaled to another width
  build            a stack over tokens, built from a design
  grid_stack       a stack over the patches of an image
  windows          blocks that attend within windows
  heads/           modules that turn hidden states into outputs: one file each, found by name
  architecture     the base of the text architectures
  encoder          a text encoder
  decoder          a text decoder
  encoder_decoder  a text encoder and a decoder that attends to it
  reader           a decoder's causal stack with an encoder's head
  multi_token      a decoder that predicts two tokens ahead
  image_encoder    a plain image encoder
  image_stages     the base of image encoders in stages
  window_encoder   an image encoder in stages that attends within windows
  backbones/       convolutional networks that compute feature maps: one file each, found by name
  conv_encoder     an image encoder of a backbone and a head
  dual_encoder     an image encoder and a text encoder
"""
