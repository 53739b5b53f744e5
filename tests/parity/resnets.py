"""Configs of tiny ResNets of `transformers`."""

RESNET = dict(
  model_type="resnet", embedding_size=8, hidden_sizes=[16, 24, 24, 32], depths=[1, 2, 1, 1]
)
BASIC = dict(
  model_type="resnet", embedding_size=4, hidden_sizes=[8, 12], depths=[2, 1], layer_type="basic"
)
