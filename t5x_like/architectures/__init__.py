"""Whole architectures, assembled from the layers of `nn`.

A family in `models/` is one of them with a table of sizes. Read the package from the bottom up;
each line imports only from the lines above it:

  design widths            the choices of an architecture as data, and other widths of a variant
  build grid_stack         a stack made from a design, of tokens and of the patches of an image
  windows                  blocks that attend within windows
  heads/                   outputs of hidden states: one file each, found by name
  architecture             the base of the text architectures
  encoder decoder          of text
  encoder_decoder reader   of text; a reader is a decoder under an encoder's head
  multi_token              a decoder that predicts two tokens ahead
  image_encoder            of images
  image_stages             the base of image encoders in stages
  window_encoder           an image encoder in stages
  backbones/ conv_encoder  networks that make a map of an image, found by name, and a head on one
  dual_encoder             encoders of images and texts
"""
