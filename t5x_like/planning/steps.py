"""Trace the step to plan from shapes alone, as a command runs it on a topology's mesh.

Nothing is allocated, no data is opened and TensorFlow is not imported. The exception is a task from
outside the package: it is built from its data, as in training.
"""

import dataclasses
import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval
from ml_collections import ConfigDict

from t5x_like.checkpoints.tensors import HOST
from t5x_like.data import features, task_features
from t5x_like.errors import UserError, did_you_mean
from t5x_like.nn import params
from t5x_like.training import checks, class_count, compilation, flops, jaxpr_flops
from t5x_like.training.build import Parts, build_phases
from t5x_like.training.resolve import padded_vocab_size
from t5x_like.training.resolve import resolve as resolved


@dataclasses.dataclass(frozen=True)
class Step:
  """A step to plan.

  Attributes:
    batch: shapes and shardings of its input.
    lower: a function that traces and lowers the step.
    model_flops: the model FLOPs of the whole step, over all devices; see `training/flops.py`.
    tokens: the input positions (or images) of a batch, or the tokens that it decodes.
  """

  batch: dict[str, jax.ShapeDtypeStruct]
  lower: Callable[[], jax.stages.Lowered]
  model_flops: float
  tokens: int


def resolve(config: ConfigDict, platform: str, phase: str | None) -> tuple[ConfigDict, Any]:
  """Return the resolved config of a phase, and its task.

  The task may be a stand-in with `features` and `vocabulary`.

  Args:
    phase: a key of `config.phases`; None is the end of the run.
  Raises:
    UserError: there is no such phase.
  """
  config = ConfigDict(config.to_dict())
  if config.model.get("vocab_size") == "auto":
    store = config.task.get("shared", config.task).get("store", "builtin")
    with config.ignore_type():
      config.model.vocab_size = padded_vocab_size(features.load_vocabulary(store))
  config = resolved(class_count.drop_automatic_labels(config), platform)
  *earlier_phases, last_phase = build_phases(config, _build_task)
  if phase is None:
    return last_phase.config, last_phase.task
  by_name = {named_phase.name: named_phase for named_phase in earlier_phases}
  if phase not in by_name:
    raise UserError(
      f"--phase={phase}: the recipe has no such phase{did_you_mean(phase, by_name)}; "
      f"it has the phases {', '.join(by_name) or '(none)'}; leave the flag out for the last"
    )
  return by_name[phase].config, by_name[phase].task


def _build_task(slot: str, name: str | None, split: str, arguments: dict[str, Any]):
  """Return a stand-in for a task of the package, or the built task of a recipe."""
  if task_features.is_known(name):
    vocabulary = features.load_vocabulary(arguments.get("store", "builtin"))
    declared = task_features.declare({"name": name} | arguments)
    return types.SimpleNamespace(name=name, features=declared, vocabulary=vocabulary)
  from t5x_like.data import task  # imports TensorFlow

  return task.build_at(slot, name, split, arguments)


def make(kind: str, config: ConfigDict, parts: Parts, task) -> Step:
  """Make a step to `train`, `eval` or `decode`.

  Raises:
    UserError: its parts do not fit, or the model cannot decode.
  """
  checks.check_task(config, parts, task)
  if kind == "train":
    batch = parts.rules.abstract_batch(task.features, config.batch_size)
    cost = flops.step_flops(parts.model, parts.objective, batch, parts.trained)
    tokens = compilation.count_positions(batch)["positions"]
    return Step(batch, lambda: compilation.lower_step(config, parts, batch), cost, tokens)
  dense = flops.with_dense_cores(parts.model)
  if kind == "eval":
    batch = _evaluation_batch(config, parts, task)
    function = _evaluation(config, parts, task)
    tokens = compilation.count_positions(batch)["positions"]
    cost = jaxpr_flops.forward_flops(function, dense, batch)
  else:
    batch, function, read_prompt, new_tokens = _decoding(config, parts, task)
    tokens = config.batch_size * new_tokens
    prompt_flops = _count_needed_flops(read_prompt, dense, batch)
    # One iteration of the loop decodes one token.
    token_flops = _count_needed_flops(function, dense, batch) - prompt_flops
    cost = prompt_flops + new_tokens * token_flops

  def run(arrays, batch):
    with parts.rules.activate():
      return function(params.with_arrays(parts.model, arrays), batch)

  return Step(batch, lambda: jax.jit(run).lower(parts.state.params, batch), cost, tokens)


def _count_needed_flops(function: Callable, *args) -> float:
  """Return the FLOPs without computations whose results are unused, such as a prompt's logits."""
  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  used_outputs = [True] * len(jaxpr.outvars)
  needed, _ = partial_eval.dce_jaxpr(jaxpr, used_outputs)
  return jaxpr_flops.count_jaxpr(needed)


def _evaluation_batch(config: ConfigDict, parts: Parts, task) -> dict[str, jax.ShapeDtypeStruct]:
  """Return the batch of an evaluation: a task's features, and the indices of examples."""
  index = jax.ShapeDtypeStruct((config.batch_size,), jnp.int32, sharding=parts.rules.batch())
  batch = parts.rules.abstract_batch(task.features, config.batch_size)
  return batch | {"example_index": index}


def _evaluation(config: ConfigDict, parts: Parts, task) -> Callable:
  """Return the function that the evaluator `loss` runs on each batch."""
  from t5x_like.evals import EvalContext, loss

  def no_batches(limit):
    return iter(())

  context = EvalContext(
    parts.model, parts.objective, task, no_batches, config.batch_size, parts.rules
  )
  return loss.Evaluator(context).compute


def _decoding(config: ConfigDict, parts: Parts, task):
  """Return (batch, function, function that only reads the prompt, new tokens) of greedy `predict`.

  The number of new tokens is the default of `predict`, within the trained length.
  """
  from t5x_like.decoding.generate import prefill
  from t5x_like.inference import generation, strategies

  shapes = {name: list(feature.shape) for name, feature in task.features.items()}
  _check_decoding(config, parts, shapes)
  strategy = strategies.Greedy()
  if "encoder_input_tokens" in shapes:
    predictor = generation.TextToText(parts.model, task.vocabulary, shapes, strategy, None)
    (length,) = shapes["encoder_input_tokens"]
  else:
    predictor = generation.Continuation(parts.model, task.vocabulary, shapes, strategy, None)
    (trained_length,) = shapes["decoder_target_tokens"]  # of prompt and continuation together
    length = trained_length - predictor.new_tokens

  options = dict(max_length=predictor.new_tokens, eos=(task.vocabulary.eos_id,))

  def decode(model, batch):
    return strategy(model, predictor.model_features(batch), batch["numbers"], **options)

  def read_prompt(model, batch):
    return prefill(model, predictor.model_features(batch), **options).state

  B = config.batch_size
  sharding = parts.rules.batch()
  tokens = jax.ShapeDtypeStruct((B, length), jnp.int32, sharding=sharding)
  numbers = jax.ShapeDtypeStruct((B, 2), jnp.uint32, sharding=sharding)
  batch = {"tokens": tokens, "valid": tokens, "numbers": numbers}
  return batch, decode, read_prompt, predictor.new_tokens


def _check_decoding(config: ConfigDict, parts: Parts, shapes: dict[str, list[int]]) -> None:
  """Refuse a model that does not generate, and examples with several rows of tokens."""
  if "decoder_target_tokens" not in shapes or not hasattr(parts.model, "decode"):
    raise UserError(
      f"--step=decode: {config.model.name} is an encoder, which generates nothing; plan --step=eval"
    )
  if len(shapes["decoder_target_tokens"]) > 1:
    raise UserError(
      f"--step=decode: task {config.task.name} has several rows of tokens for each example, "
      "expected one; plan the recipe that the model starts from"
    )


def shard_bytes(tree) -> float:
  """Return one device's bytes of a tree of abstract arrays with shardings.

  The padding of tiles and arrays in the hosts' memory do not count.
  """
  total = 0
  for x in jax.tree.leaves(tree):
    if x.sharding.memory_kind != HOST:
      total += math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
  return float(total)
