"""T5's pretraining task: span corruption of consecutive windows of a token store.

Example i is window i of W tokens, corrupted; W = 568 for 512 inputs. Tokens after the last whole
window are unused. Every (seed, epoch, example) draws new noise.
"""

from __future__ import annotations

import dataclasses

from t5x_like.data import features as layouts
from t5x_like.data import random
from t5x_like.data.features import Features
from t5x_like.data.preprocessors.encoder_decoder import encoder_decoder
from t5x_like.data.preprocessors.span_corruption import SpanCorruption, random_spans_lengths
from t5x_like.data.task import Task, unfingerprinted
from t5x_like.data.windows import ONLY_CHECKED, DocumentsEnd, TextArguments
from t5x_like.quiet_tensorflow import tf
from t5x_like.slots import Length
from t5x_like.vocabularies import Vocabulary, padding_id

SENTINELS = True  # the targets have sentinels before their spans; see `laptop`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments(TextArguments):
  """The arguments of span corruption.

  Attributes:
    inputs_length: encoder length, EOS included; the raw window follows from it.
    targets_length: decoder length, EOS included; None derives it (114 for 512).
    noise_density: fraction of tokens that are noise.
    mean_noise_span_length: mean noise tokens per span.
    random_roll: lets noise begin or end anywhere in the window, see
      `preprocessors/span_corruption.py`.
    prefix: text before the inputs, such as a mode token of UL2; its tokens count towards
      `inputs_length`.
    documents_end: the end of each document in the store: `nothing` (T5 joins them), `eos` or `any`.
  """

  inputs_length: Length = 512
  targets_length: Length | None = None
  noise_density: float = 0.15
  mean_noise_span_length: float = 3.0
  random_roll: bool = False
  prefix: str = ""
  documents_end: DocumentsEnd = unfingerprinted(ONLY_CHECKED, default="nothing")

  def features(self, vocabulary: Vocabulary) -> Features:
    targets_length = self.targets_length
    if targets_length is None:
      room = 1 if self.random_roll else 0  # for the sentinel of a span that the roll cuts in two
      prefix_length = len(vocabulary.encode(self.prefix)) if self.prefix else 0
      _, targets_length = random_spans_lengths(
        self.inputs_length - prefix_length - room,
        float(self.noise_density),
        float(self.mean_noise_span_length),
      )
      targets_length += room
    return layouts.encoder_decoder(self.inputs_length, targets_length, vocabulary)

  def build(self) -> Task:
    """Open the store and return the task.

    Raises:
      UserError: the store cannot be used, is shorter than one window, or its vocabulary lacks
        sentinels; impossible lengths or densities.
    """
    vocabulary = self.tokens(self.documents_end).vocabulary
    prefix_ids = vocabulary.encode(self.prefix) if self.prefix else []
    corruption = SpanCorruption(
      sentinels=vocabulary.sentinels,
      inputs_length=self.inputs_length - len(prefix_ids),
      targets_length=self.targets_length,
      noise_density=float(self.noise_density),
      mean_noise_span_length=float(self.mean_noise_span_length),
      eos_id=vocabulary.eos_id,
      pad_id=padding_id(vocabulary),
      random_roll=self.random_roll,
    )
    windows = self.windows(corruption.window, self.documents_end)

    def batch(example_index_B: tf.Tensor, epoch_B: tf.Tensor, seed: int) -> dict[str, tf.Tensor]:
      window_BW = windows.read(example_index_B, epoch_B, seed)
      corrupted = corruption(window_BW, random.row_keys(seed, epoch_B, example_index_B))
      inputs = corrupted["inputs"]
      if prefix_ids:
        prefix_BP = tf.tile(tf.constant([prefix_ids], tf.int32), [tf.shape(inputs)[0], 1])
        inputs = tf.concat([prefix_BP, inputs], axis=1)
      return encoder_decoder(inputs, corrupted["targets"], vocabulary)

    return self.build_task(
      "span_corruption.v1", windows, batch, targets_length=corruption.targets_length
    )
