"""TensorFlow and TFDS without start-up notices: `from t5x_like.data.quiet_tensorflow import tf, tfds`.

The oneDNN notice ignores the log level and can only be avoided by switching oneDNN off in TensorFlow, which the input
pipeline does not need; the setting is removed after the import, so that nothing else in the process sees it. TFDS warns
of its own use of an old attribute.
"""

import logging
import os

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_chosen = os.environ.get(_ONEDNN)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault(_ONEDNN, "0")
try:
  import tensorflow as tf
  import tensorflow_datasets as tfds
finally:
  if _chosen is None:
    os.environ.pop(_ONEDNN, None)

logging.getLogger("absl").addFilter(lambda record: ".dtype` is deprecated" not in record.getMessage())

__all__ = ["tf", "tfds"]
