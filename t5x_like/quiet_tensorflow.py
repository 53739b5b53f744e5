"""TensorFlow and TFDS, imported at first use.

Import them by `from t5x_like.quiet_tensorflow import tf, tfds`. A machine without TensorFlow
can then import modules that use it, and read their features and arguments.

TensorFlow starts without notices or Keras. The oneDNN notice ignores the log level; only switching
oneDNN off avoids it. The input pipeline does not need oneDNN, and the setting is removed after the
import, so that nothing else in the process sees it. The log filter drops a warning of TFDS about
its own use of an old attribute.

TensorFlow imports Keras at once, and with it scikit-learn, SciPy's statistics and pyplot: a third
of its start-up time. Here that import fails, which TensorFlow allows for; `tf.keras` still works
and is imported on first use.
"""

import functools
import logging
import os
import sys
import threading
import types

# jax sets 1 when it is imported. TensorFlow then prints a traceback for each error of a Python
# function of a pipeline.
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_JAX_LOG_LEVEL = "1"
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_KERAS = "keras.src.optimizers"
_importing = threading.Lock()

__all__ = ["tf", "tfds"]


class _AtFirstUse(types.ModuleType):
  """A placeholder that imports its module when an attribute is first read."""

  def __init__(self, name, load):
    super().__init__(name)
    self.__dict__["_load"] = load

  def __getattr__(self, name: str):
    value = getattr(self._load(), name)
    self.__dict__[name] = value
    return value


@functools.cache
def _tensorflow() -> types.ModuleType:
  with _importing:
    chosen = os.environ.get(_ONEDNN)
    if os.environ.get(_LOG_LEVEL, _JAX_LOG_LEVEL) == _JAX_LOG_LEVEL:
      os.environ[_LOG_LEVEL] = "2"
    os.environ.setdefault(_ONEDNN, "0")
    left_out = sys.modules.setdefault(_KERAS, None) is None
    try:
      import tensorflow as loaded
    finally:
      if left_out:
        del sys.modules[_KERAS]
      if chosen is None:
        os.environ.pop(_ONEDNN, None)
  logging.getLogger("absl").addFilter(
    lambda record: ".dtype` is deprecated" not in record.getMessage()
  )
  return loaded


def _tfds() -> types.ModuleType:
  _tensorflow()
  import tensorflow_datasets

  return tensorflow_datasets


tf = _AtFirstUse("tensorflow", _tensorflow)
tfds = _AtFirstUse("tensorflow_datasets", _tfds)
