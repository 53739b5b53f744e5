"""TensorFlow and TFDS without start-up notices or Keras: `from t5x_like.data.quiet_tensorflow import tf, tfds`.

The oneDNN notice ignores the log level and can only be avoided by switching oneDNN off in TensorFlow, which the input
pipeline does not need; the setting is removed after the import, so that nothing else in the process sees it. TFDS warns
of its own use of an old attribute.

TensorFlow imports Keras at once, and with it scikit-learn, SciPy's statistics and pyplot: a third of its start. Here
that import fails, which TensorFlow allows for; `tf.keras` still works, imported when it is used. So is TFDS.
"""

import logging
import os
import sys

_ONEDNN, _KERAS = "TF_ENABLE_ONEDNN_OPTS", "keras.src.optimizers"
_chosen = os.environ.get(_ONEDNN)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault(_ONEDNN, "0")
_left_out = sys.modules.setdefault(_KERAS, None) is None
try:
  import tensorflow as tf
finally:
  if _left_out:
    del sys.modules[_KERAS]
  if _chosen is None:
    os.environ.pop(_ONEDNN, None)

logging.getLogger("absl").addFilter(lambda record: ".dtype` is deprecated" not in record.getMessage())

__all__ = ["tf"]


def __getattr__(name: str):
  if name != "tfds":
    raise AttributeError(name)
  import tensorflow_datasets

  return tensorflow_datasets
