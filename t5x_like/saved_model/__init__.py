"""Open trained models: workdirs of runs, Hugging Face directories, names of the Hub, GGUF files.

Every command, tool and run that uses a trained model opens it here. Opening reads the model's
config; `SavedModel.restore` reads its parameters.
"""

from t5x_like import trust
from t5x_like.files.gguf_file import is_gguf
from t5x_like.parallel.rules import Rules
from t5x_like.saved_model.hub import missing_model_error
from t5x_like.saved_model.model import SavedModel
from t5x_like.saved_model.workdir import find_run


def open_saved_model(path: str, rules: Rules | None = None, flag: str = "--workdir") -> SavedModel:
  """Open a trained model without reading its parameters.

  Args:
    path: a run's workdir or address, a Hugging Face directory, a name of the Hub, or a GGUF file.
    rules: the mesh and its rules; None is the run's own, or all devices for a published model.
    flag: the flag or key that gave the path, for messages.
  Raises:
    UserError: there is no trained model, this command may not open it, or it is damaged.
  """
  saved_model = find_saved_model(path, rules, flag)
  if saved_model is None:
    raise missing_model_error(str(path), flag)
  return saved_model


def find_saved_model(
  path: str, rules: Rules | None = None, flag: str = "--workdir"
) -> SavedModel | None:
  """Open a trained model as `open_saved_model` does; return None if there is none."""
  trust.check_location(flag, path)
  if not is_gguf(path):
    run = find_run(str(path), rules)
    if run is not None:
      return run
  from t5x_like.saved_model.hugging_face import find_published_model  # reads all families

  return find_published_model(str(path), rules, flag)
