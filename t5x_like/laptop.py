"""The laptop forms of a recipe: `:tiny` learns within minutes, `:debug` proves in two steps that it runs.

Both keep what a recipe is about, its objective, its data's arithmetic, its optimizer and the shape of its schedule, and
change what a laptop cannot afford: model, lengths, batch, steps.
"""

from ml_collections import ConfigDict

FORMS = ("tiny", "debug")
# The design of a tiny encoder. It predicts one token in seven from its neighbours, and learned positions take thousands
# of steps to tell it which those are; rotations do from the start. BERT's deviation of 0.02 is for a width of 768.
ENCODER = {"init_stddev": 0.06, "position": "rope"}
_STEPS, _WARMUP, _LENGTH = 400, 50, 128
_DEBUG_LENGTH = 64


def laptop(
  config: ConfigDict, options: list[str], variant: str, *, learning_rate: float = 2e-3, batch_size: int = 32, **model
) -> ConfigDict:
  """The last line of a recipe: its laptop form if one is among the options, else the recipe itself.

  `:tiny` is 400 steps on rows of 128 tokens of the recipe's corpus, or of that given by `--config.task.store`; the loss
  should end well below `unigram_entropy`. `:debug` is two steps of 8 rows of 64 on a corpus that is built in, one in
  each phase.

  Args:
    config: the recipe at full size.
    options: words of its argument.
    variant: the family's tiny size.
    learning_rate: what suits that size, at the schedule's peak; T5's inverse square root gives its own.
    batch_size: rows; an encoder that predicts one token in seven needs more of them.
    **model: other keys of `config.model` that go with the size.
  """
  if not set(FORMS) & set(options):
    return config
  debug = "debug" in options
  config.model = config.model.to_dict() | {"variant": variant, "vocab_size": "auto", "remat": "none"} | model
  if debug:
    config.model.layers = "scan"  # compiles sooner
  else:
    config.model.dropout = 0.0  # a few hundred steps do not overfit
  _corpus(config.task, builtin=debug)
  if config.phases:
    until, length = (1, _DEBUG_LENGTH // 2) if debug else (_STEPS * 9 // 10, _LENGTH // 2)
    config.phases = {"short": {"until": until, "task": {"length": length}}}
  if config.schedule.name == "rsqrt":
    config.schedule.warmup_steps = 1_000
  else:
    config.schedule.learning_rate = learning_rate
    if "warmup_steps" in config.schedule:
      config.schedule.warmup_steps = 1 if debug else _WARMUP
  config.batch_size, config.accumulation_steps = 8 if debug else batch_size, 1
  config.total_steps = 2 if debug else _STEPS
  config.eval_every = 2 if debug else 100
  for name, values in config.evals.items():
    values.max_examples = (16 if name == "loss" else 8) if debug else 512 if name == "loss" else 32
  config.checkpoint = {"every": 2 if debug else 100, "keep_last": 2}
  config.mesh = {"data": -1}
  return config


def _corpus(task: ConfigDict, *, builtin: bool) -> None:
  """Short rows; and the corpus that needs no data."""
  length = _DEBUG_LENGTH if builtin else _LENGTH
  if task.name == "text_to_text":
    task.inputs_length = task.targets_length = _LENGTH
    if builtin:
      task.source, task.vocabulary = "builtin", "bytes"
      task.inputs, task.targets = "reverse: {text}", "{reversed}"
    return
  values = task.get("shared", task)
  if "inputs_length" in values:
    values.inputs_length = length
    if "targets_length" in values:
      del values.targets_length  # follows from the inputs
  else:
    values.length = length
  if builtin:
    values.store = "builtin"
