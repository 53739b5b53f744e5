"""A trained model, opened from anywhere by `load(path)`.

The commands predict, chat and evaluate and the tools use it too.

model = t5x.load("runs/small")           # a run's workdir or gs:// address, imported or trained
model = t5x.load("gpt2")                 # a Hugging Face directory, or a name of the Hub
model = t5x.load("smollm2.gguf")         # a GGUF file
model.generate("Returns the <extra_id_0> of the array.")
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack, get_args, overload

import numpy as np
from flax import nnx

from t5x_like import slots, trust
from t5x_like.checkpoints.tensors import fingerprints
from t5x_like.data import task_features
from t5x_like.data.supervised import published_template
from t5x_like.decoding.transforms import FILTERS, PENALTIES, build_transforms
from t5x_like.errors import UserError, did_you_mean
from t5x_like.evals._embeddings import Pooling
from t5x_like.files import checked_json
from t5x_like.inference import classification, image_texts, images, predictors, texts
from t5x_like.inference.classification import TextClassification
from t5x_like.inference.embedding import Embedding
from t5x_like.inference.fill_mask import MaskFilling
from t5x_like.inference.generation import Generation
from t5x_like.inference.prompts import Prompts
from t5x_like.inference.streaming import Stream
from t5x_like.inference.talk import Talk
from t5x_like.interop import generation_settings, sentence_pooling
from t5x_like.nn import params
from t5x_like.parallel.rules import Rules
from t5x_like.rows import Runner
from t5x_like.runtime import process
from t5x_like.saved_model import SavedModel, exports, open_saved_model
from t5x_like.saved_model.exports import gguf, hf
from t5x_like.saved_model.model import merge_for_export
from t5x_like.training.open_with_recipe import open_with_recipe


class PredictOptions(TypedDict, total=False):
  """The options of a prediction; python -m t5x_like.predict --help describes them."""

  max_new_tokens: int
  min_new_tokens: int
  stop: str | Sequence[str]
  banned_words: str | Sequence[str]
  repetition_penalty: float
  no_repeat_ngram_size: int
  beams: int
  length_penalty: float
  length_power: float
  samples: int
  temperature: float
  top_k: int
  top_p: float
  min_p: float
  typical_p: float
  seed: int


class Model:
  """A trained model.

  `load` returns one with its parameters in memory; `open_model` reads them when they are used.

  Args:
    source: the run or the published model.
    step: the checkpoint; None is the newest.
    batch_size: rows in a batch.

  Attributes:
    path: the workdir, directory or name.
    model: the abstract model.
    vocabulary: the vocabulary that it was trained with.
    features: names and shapes of the features of a row in training.
    ends: ids that end a text; empty for a model of images.
    forced: for some published models, the ids with which an answer begins and, if it reaches the
      maximal length, ends.
    settings: a published model's own options of generation, which options of a call replace.
    template: the chat template of a decoder trained on conversations, else None.
    labels: the names of the classes of a classifier of texts, in their order; None for another
      model.

  Raises:
    UserError: the vocabulary is damaged, or is not the model's.
  """

  def __init__(self, source: SavedModel, step: int | None, batch_size: int):
    if batch_size < 1:
      raise UserError(f"--batch_size={batch_size}: expected at least 1")
    self.path = source.path
    self.model = source.model
    self._source = source
    self._step = step
    self._batch_size = batch_size
    self._embeddings: dict[str, Embedding] = {}
    self._predictors: dict[tuple, Generation | MaskFilling | TextClassification] = {}
    task = source.config.task
    self.vocabulary = source.vocabulary
    self.ends = source.generation.ends
    self.forced = source.generation.forced
    self.settings = source.generation.options
    self.template: str | dict | None = None
    if task_features.is_conversation(task.name):
      self.template = slots.to_plain(task.get("template"))
    self.features: dict[str, list[int]] = {
      name: list(shape[-1:]) for name, shape in source.feature_shapes.items()
    }
    self.labels: list[str] | None = None
    if self._classifies and task.get("labels"):
      self.labels = [str(name) for name in task.labels]

  @functools.cached_property
  def _restored(self) -> tuple[int, Runner]:
    step, arrays = self._source.restore(self._step)
    return step, Runner(self.model, self._source.rules, arrays, self._batch_size)

  @property
  def step(self) -> int:
    """The step of the checkpoint; 0 for a published model."""
    return self._restored[0]

  @property
  def is_published(self) -> bool:
    """Whether the model was read from a Hugging Face directory or a GGUF file, not from a run."""
    return self._source.is_published

  @property
  def run(self) -> Runner:
    """The model with its parameters, which applies functions to rows of tokens."""
    return self._restored[1]

  @functools.cached_property
  def fingerprint(self) -> str:
    """A digest of the parameters, the model's config and the vocabulary, equal on any mesh."""
    facts = {
      "parameters": fingerprints(self.run.arrays),
      "model": self._source.config.model.to_dict(),
      "vocabulary": self.vocabulary.fingerprint,
      "ends": sorted(self.ends),
      "forced": self.forced,
    }
    return checked_json.digest(facts)

  @functools.cached_property
  def _prompts(self) -> Prompts:
    return Prompts(self)

  @property
  def _classifies(self) -> bool:
    """Whether the model was trained on labels, or numbers, of texts or pairs of texts."""
    return self._source.config.task.name == classification.TASK_NAME

  def predict(
    self,
    inputs: Sequence[Any],
    choices: Sequence[str] | None = None,
    *,
    origin: str = "predict",
    template: str | dict | None = None,
    **options: Unpack[PredictOptions],
  ) -> list[dict[str, Any]]:
    """Return a record for each input, as `python -m t5x_like.predict` writes them.

    Args:
      inputs: texts or, for a model of images, paths of files; a classifier of pairs takes pairs of
        texts. Classifiers of texts also take records with the fields of training. With a chat
        template an input may also be a conversation, a list of messages with `role` and `content`.
      choices: for a model of images and texts, the texts to choose from.
      origin: the origin of the inputs, for error messages.
      template: the chat template, if it is not `self.template`; "none" continues texts.
    Raises:
      UserError: an input is too long or has nothing to fill, or an option does not apply to the
        model.
    """
    if isinstance(inputs, str):
      raise UserError(
        f"{origin}: found a string, expected a list of inputs, such as [{inputs[:40]!r}]"
      )
    if "image" in self.features:
      task = self._source.config.task.to_dict()
      arguments = (self.model, self.vocabulary, task, check_options(options))
      if choices is None:
        predict = images.build_predictor(*arguments)
      else:
        predict = image_texts.TextChoice(*arguments, choices)
      return predict(self.run, inputs)
    if self._classifies:
      predict = self.classifier(**options)
    else:
      predict = self._predictor(template, **options)
    if not len(inputs):
      return []
    ids = predict.encode(inputs, origin)
    return predict(self.run, ids, inputs)

  def read(self, path: str, field: str | None = None) -> list[Any]:
    """Return the inputs of a file for `predict`, None for a blank line.

    Args:
      path: as in `python -m t5x_like.predict --input`.
      field: the key or column of the text.
    Raises:
      UserError: the file is missing, empty or not UTF-8, or lacks the key or column.
    """
    if "image" in self.features:
      return images.list_images(path)
    if self._classifies:
      return self.classifier().read(path, field)
    return texts.read_texts(path, field)

  def classifier(self, **options: Unpack[PredictOptions]) -> TextClassification:
    """Return the predictor of a text classifier.

    Raises:
      UserError: an option is not `top_k`.
    """
    flags = check_options(options)
    key = ("", *sorted(flags.items()))
    if key not in self._predictors:
      task = self._source.config.task.to_dict()
      task.pop("name")
      self._predictors[key] = TextClassification(self.model, self.vocabulary, task, flags)
    return self._predictors[key]

  def generate(self, prompts: str | Sequence[str], **options: Unpack[PredictOptions]) -> Any:
    """Return the text that follows or answers each prompt.

    A decoder continues the prompt, an encoder-decoder answers it.

    Returns:
      A string for a string, a list for a list; with `samples`, a list of strings instead of each
      string.
    Raises:
      UserError: as `predict`, or the model is an encoder or one of images.
    """
    if "decoder_target_tokens" not in self.features:
      raise UserError(
        f"{self.path}: the model generates no text; use `fill` with an encoder, `predict` with "
        "images and classifiers"
      )
    predict = self._predictor(None, **options)

    def answer_prompts(batch: list[str]) -> list[str | list[str]]:
      records = predict(self.run, predict.encode(batch, "generate"), batch)
      return [_text(record) for record in records]

    return _each(prompts, answer_prompts)

  @overload
  def fill(self, texts: str) -> str: ...
  @overload
  def fill(self, texts: Sequence[str]) -> list[str]: ...
  def fill(self, texts):
    """Return each text with its blanks filled.

    The blanks are `[MASK]` for an encoder, `<extra_id_0>` … for an encoder-decoder. `predict` also
    gives the candidates for each mask.

    Raises:
      UserError: as `predict`, or there is nothing to fill, or the model is a decoder.
    """

    if self._classifies:
      raise UserError(f"{self.path}: the model labels texts and fills nothing; use `predict`")

    def fill_texts(texts: list[str]) -> list[str]:
      records = self.predict(texts, origin="fill")
      for record in records:
        if "filled" not in record:
          remedy = "write <extra_id_0> in it"
          if self._is_decoder:
            remedy = "a decoder fills nothing; use `generate`"
          raise UserError(
            f"fill: {record['input'][:40]!r} has no blank that the model fills; {remedy}"
          )
      return [record["filled"] for record in records]

    return _each(texts, fill_texts)

  def score(
    self, texts: str | Sequence[str], continuations: str | Sequence[str] | None = None
  ) -> Any:
    """Return log-probabilities in nats, summed over tokens.

    Args:
      texts: whole texts, or contexts. A decoder reads its start token before either, as in
        training.
      continuations: a continuation of each context. An encoder-decoder needs them: they are its
        targets.
    Returns:
      A float for a string, a list of floats for a list.
    Raises:
      UserError: the model is an encoder, or a continuation is longer than it reads.
    """
    if continuations is None:
      if self._prompts.is_encoder_decoder:
        raise UserError(
          "score: an encoder-decoder scores targets; give the continuations of the texts too"
        )
      encode = self._prompts.encode
      start = self._prompts.start_id
      rolling = self._prompts.likelihood.rolling_log_probability
      return _each(
        texts, lambda batch: [rolling(encode(text, special=False), start) for text in batch]
      )
    if isinstance(texts, str) != isinstance(continuations, str):
      raise UserError("score: found a string and a list, expected two strings or two lists")
    if isinstance(texts, str):
      return self.score([texts], [continuations])[0]
    if len(texts) != len(continuations):
      raise UserError(
        f"score: found {len(texts)} texts and {len(continuations)} continuations, expected "
        "equal numbers"
      )
    pairs = []
    for text, continuation in zip(texts, continuations, strict=True):
      pairs.append(self._prompts.encode_pair(text, continuation))
    return [score.log_probability for score in self._prompts.likelihood(pairs)]

  def encode(self, texts: str | Sequence[str], pooling: str = "mean") -> np.ndarray:
    """Return an encoder's embeddings, float32 [D] for a string, [len(texts), D] for a list.

    Embeddings have length one. A text that is longer than the model reads is truncated.
    `vocabulary.encode(text)` gives token ids instead.

    Args:
      pooling: `mean`, the mean of the last hidden states, or `cls`, the state of the first token.
    Raises:
      UserError: the model is no encoder.
    """
    predict = self._embedding(pooling)
    texts_to_embed = [texts] if isinstance(texts, str) else list(texts)
    if not texts_to_embed:
      raise UserError("encode: found no text, expected at least one")
    embeddings_ND = predict.rows(self.run, predict.encode(texts_to_embed, "encode"))
    return embeddings_ND[0] if isinstance(texts, str) else embeddings_ND

  def embed(self, texts: Sequence[str], pooling: str = "mean") -> list[dict[str, Any]]:
    """Return a record of each text and its embedding.

    `python -m t5x_like.predict --embed` writes the same records.
    """
    predict = self._embedding(pooling)
    return predict(self.run, predict.encode(texts, "--input"), texts)

  def save_hf(self, directory: str, dtype: str | None = None) -> None:
    """Write a new directory that `transformers` loads, with the tokenizer; adapters are merged.

    Args:
      directory: a path or address; it must not exist, or be empty.
      dtype: `float32`, `bfloat16` or `float16`; None is the published files' type, or float32.
    Raises:
      UserError: the directory has files, or `transformers` has no model of this kind.
    """
    hf.write(self._merged(), directory, exports.describe(self._source), dtype)

  def save_gguf(self, path: str, dtype: str | None = None) -> None:
    """Write a new GGUF file that llama.cpp runs, with the tokenizer; adapters are merged.

    Args:
      path: a local path that does not exist.
      dtype: `float16` or `q8_0`; None is float16.
    Raises:
      UserError: the file exists, or GGUF has no model or tokenizer of this kind.
    """
    gguf.write(self._merged(), path, exports.describe(self._source), dtype)

  def _merged(self) -> nnx.Module:
    return merge_for_export(params.with_arrays(self.model, self.run.arrays))

  def chat_template(self, name: str | dict | None = None) -> str | dict | None:
    """Return the template of a conversation with the model.

    Args:
      name: a template chosen by the user; "none" is no template. None is the template of training
        or, for a published decoder, `published`, the one in its tokenizer's files.
    """
    if name == "none":
      return None
    if name is not None or self.template is not None:
      return name or self.template
    generates = self._is_decoder and "decoder_target_tokens" in self.features
    if not self.is_published or not generates:
      return None
    if published_template.find_template_text(self.vocabulary) is None:
      return None
    return published_template.PUBLISHED

  def talk(
    self,
    *,
    template: str | dict | None,
    context: int | None,
    seed: int,
    **options: Unpack[PredictOptions],
  ) -> Talk:
    """Return a conversation, as `python -m t5x_like.chat` has it.

    Args:
      template: the chat template, see `chat_template`.
      context: the most tokens of a conversation; None is the length in training, up to 512.
      seed: the seed of the sampling.
      options: `max_new_tokens`, `stop`, `banned_words`, and the restrictions of the tokens to
        choose from.
    Raises:
      UserError: the model is one of images, or an option is out of range.
    """
    if "image" in self.features:
      raise UserError(
        f"--workdir={self.path}: the model is one of images; use python -m t5x_like.predict"
      )
    if self._classifies:
      return Talk(self.run, self.classifier(**options), None)
    values = {name: value for name, value in self.settings.items() if name in PENALTIES}
    for name in (*PENALTIES, *FILTERS):
      if name in options and name != "temperature":  # every answer has its own temperature
        values[name] = options.pop(name)
    predict = self._predictor(self.chat_template(template) or "none", **options)
    if self._has_own_predictor:
      raise UserError(
        f"--workdir={self.path}: the model answers single questions; ask it by python -m "
        "t5x_like.predict"
      )
    if isinstance(predict, MaskFilling):
      return Talk(self.run, predict, None)
    transforms = build_transforms(values)
    stream = Stream(self.run, predict, transforms, predict.max_prompt_length(context), seed)
    return Talk(self.run, predict, stream)

  @property
  def _is_decoder(self) -> bool:
    return "encoder_input_tokens" not in self.features

  @property
  def _has_own_predictor(self) -> bool:
    """Whether the family has a predictor of its own, such as one that retrieves passages."""
    return hasattr(self.model, "open_predictor")

  def _embedding(self, pooling: str) -> Embedding:
    if pooling not in get_args(Pooling):
      raise UserError(f"pooling: found {pooling!r}, expected one of {', '.join(get_args(Pooling))}")
    if pooling not in self._embeddings:
      self._embeddings[pooling] = Embedding(self.model, self.vocabulary, pooling)
      if self.is_published:
        note = sentence_pooling.pooling_mismatch(self._source.vocabulary_directory, pooling)
        if note:
          process.log(note)
    return self._embeddings[pooling]

  def _predictor(self, template: str | dict | None, **options: Unpack[PredictOptions]):
    flags = check_options(options)
    template = None if template == "none" else template or self.template
    if "decoder_target_tokens" in self.features:
      flags = generation_settings.merge_options(self.settings, flags)
    key = (repr(template), *sorted(flags.items()))
    if key not in self._predictors:  # a predictor is reused, with its compiled programs
      self._predictors[key] = self._make_predictor(flags, template)
    return self._predictors[key]

  def _make_predictor(self, flags: dict[str, Any], template: str | dict | None):
    if self._has_own_predictor:
      return self.model.open_predictor(self._source.config, flags)
    predict = predictors.build_predictor(
      self.model, self.vocabulary, self.features, flags, template
    )
    if isinstance(predict, Generation):
      predict.ends = tuple(sorted({*predict.ends, *self.ends}))
      predict.forced = self.forced
      predict.banned = {*predict.banned, *self._source.generation.banned}
      if self.is_published:  # it was trained on texts with the special tokens of its tokenizer
        predict.enclosing_ids = self.vocabulary.enclosing_ids() or predict.enclosing_ids
      if self.is_published and template == published_template.PUBLISHED:
        predict.enclosing_ids = [], []  # the template writes the special tokens itself
    return predict

  def __repr__(self) -> str:
    return f"<{type(self).__name__} {self.path}: {params.count(self.model):,} parameters>"


def load(
  path: str, *, step: int | None = None, batch_size: int = 32, rules: Rules | None = None
) -> Model:
  """Open a trained model and read its parameters.

  Args:
    path: a run's workdir or address, imported or trained; a Hugging Face directory; a name of the
      Hub; or a GGUF file.
    step: the run's checkpoint; None is the newest.
    batch_size: the most rows in a batch of any method.
    rules: the mesh and its rules; None uses the run's config, or all devices for a published model.
  Raises:
    UserError: there is no such model or checkpoint, or it is damaged.
  """
  process.prepare()
  trust.admit_locations(str(path))
  model = Model(open_saved_model(str(path), rules, "t5x.load"), step, batch_size)
  _ = model.run
  return model


def open_model(
  path: str, recipe: str | None, overrides: Sequence[str], step: int | None, batch_size: int
) -> Model:
  """Open a trained model, perhaps with another recipe or changes to its config.

  The parameters are read when they are first used.

  Args:
    path, step, batch_size: as in `load`.
    recipe, overrides: as in `open_with_recipe`.
  Raises:
    UserError: as `load` and `open_with_recipe`.
  """
  process.prepare()
  if recipe is None and not overrides:
    return Model(open_saved_model(path), step, batch_size)
  return Model(open_with_recipe(path, recipe, overrides, rows=True), step, batch_size)


def check_options(options: PredictOptions) -> dict[str, Any]:
  """Return the options that are given; raise UserError for an unknown one."""
  option_names = PredictOptions.__annotations__
  for name in options:
    if name not in option_names:
      raise UserError(
        f"{name}: unknown option{did_you_mean(name, option_names)}; a prediction takes "
        f"{', '.join(option_names)}"
      )
  lists = {name: tuple(value) for name, value in options.items() if isinstance(value, list)}
  return {name: value for name, value in {**options, **lists}.items() if value is not None}


def _each(texts: str | Sequence[str], function: Callable[[list[str]], list]) -> Any:
  """Return the results of `function` for several texts, or the only one for a string."""
  if isinstance(texts, str):
    return function([texts])[0]
  return function(list(texts)) if len(texts) else []


def _text(record: dict[str, Any]) -> str | list[str]:
  return record["prediction"] if "prediction" in record else record["predictions"]
