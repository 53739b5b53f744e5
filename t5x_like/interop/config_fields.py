"""Read a Hugging Face `config.json`: use, ignore or refuse each field by name."""

import logging
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from t5x_like.errors import UserError
from t5x_like.files.file_names import quote_name
from t5x_like.interop.field_types import check_fields

# Fields about training, generation, the tokenizer, the file itself or its author's tools, which do
# not affect logits.
_WITHOUT_EFFECT = frozenset(
  """
  _name_or_path _commit_hash _attn_implementation _attn_implementation_autoset architectures
  auto_map model_type transformers_version torch_dtype dtype torchscript use_bfloat16 return_dict
  return_dict_in_generate output_attentions output_hidden_states output_past output_scores use_cache
  id2label label2id num_labels problem_type finetuning_task task_specific_params tokenizer_class
  prefix bos_token_id sep_token_id cls_token_id mask_token_id unk_token_id decoder_start_token_id
  forced_bos_token_id forced_eos_token_id begin_suppress_tokens suppress_tokens bad_words_ids
  max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
  temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
  encoder_no_repeat_ngram_size num_return_sequences exponential_decay_length_penalty
  remove_invalid_values renormalize_logits initializer_range initializer_factor init_std
  gradient_checkpointing classifier_dropout summary_type summary_use_proj summary_activation
  summary_proj_to_labels summary_first_dropout summary_last_dropout is_encoder_decoder
  tf_legacy_loss pretraining_tp _num_labels author is_llama_config model_max_length
  neftune_noise_alpha predict_special_tokens sbert_ce_default_activation_function scalable_attention
  sentence_transformers tokenizer_name transformers.js_config unsloth_fixed unsloth_version
  output_router_logits
  """.split()
)

# Fields of other programs and of training, which cannot change the function; they are skipped, and
# named in one warning.
_SKIPPED = re.compile(
  "|".join(
    """
    _.* .*dropout.* .*_pdrop unsloth_.* max_sequence_length seq_length attn_implementation
    attention_implementation use_flash_attn use_flash_attention use_flash_attention_2
    flash_attn use_memory_efficient_attention max_window_layers adapters adapter_.* save_step
    global_step seed fp16 bf16 fp32 language languages license tags datasets base_model
    base_model_name_or_path name_or_path model_name peft_type peft_version training_args
    learning_rate weight_decay train_batch_size warmup_steps pad_token bos_token eos_token
    unk_token sep_token cls_token mask_token vocab_file loss_type deterministic_flash_attn
    chat_template
    """.split()
  )
)
_log = logging.getLogger("t5x_like.interop")
_warned: set[tuple[str, ...]] = set()

# Fields that may have these values alone; others would change the model.
_REQUIRED = {
  "is_decoder": (False,),
  "add_cross_attention": (False,),
  "cross_attention_hidden_size": (None,),
  "chunk_size_feed_forward": (0,),
  "pruned_heads": ({}, None),
  "tie_encoder_decoder": (False,),
  "quantization_config": (None,),
  "n_special": (0,),
  "rope_interleaved": (False,),
}


class Fields:
  """The fields of a config, checked for their types, and tracked so that none is left unused.

  Args:
    values: the parsed JSON.
    origin: the file, for messages.
    tensor_names: the names of the tensors in the directory of the config.
    tensor_count, parameter_count: the number of these tensors, and of values in them; see
      `field_types.check_fields`.
  Raises:
    UserError: a field has the wrong type or is out of range.
  """

  def __init__(
    self,
    values: dict[str, Any],
    origin: str,
    tensor_names: Collection[str] = (),
    tensor_count: int | None = None,
    parameter_count: int | None = None,
  ):
    check_fields(values, origin, tensor_count, parameter_count)
    self.values = values
    self.origin = origin
    self.tensor_names = tensor_names
    self._unused = set(values) - _WITHOUT_EFFECT

  def take(self, name: str, default: Any = ...) -> Any:
    """Return the value of a field, or the default if it is missing or null.

    Raises:
      UserError: the field is missing and has no default.
    """
    self._unused.discard(name)
    value = self.values.get(name)
    if value is not None:
      return value
    if default is ...:
      raise UserError(f"{self.origin}: field {name!r} is missing; the config is incomplete")
    return default

  def take_nullable(self, name: str, default: Any) -> Any:
    """Return the value of a field, which may be null; the default only if the field is missing."""
    value = self.take(name, None)
    return value if name in self.values else default

  def choose(self, name: str, table: dict, default: Any = ...) -> Any:
    """Look up the value of a field in a table; raise UserError if the table lacks it."""
    value = self.take(name, default)
    if not isinstance(value, str | bool) or value not in table:
      raise self.refusal(name, value, " or ".join(map(repr, table)))
    return table[value]

  def require(self, name: str, *allowed: Any) -> None:
    """Raise UserError if a field is present with a value that is not allowed."""
    self._unused.discard(name)
    if name in self.values and self.values[name] not in allowed:
      raise self.refusal(name, self.values[name], " or ".join(map(repr, allowed)))

  def section(self, name: str, defaults: Mapping[str, Any] = MappingProxyType({})) -> "Fields":
    """Return the fields of an object within the config, none if it is missing.

    Call `refuse_unused` of the section too.

    Args:
      defaults: the values of fields that are missing or null.
    """
    values = self.take(name, {})
    missing = {field: value for field, value in defaults.items() if values.get(field) is None}
    return Fields(values | missing, f"{self.origin}, {name}")

  def ignore(self, *names: str) -> None:
    """Mark fields as used that do not affect logits, such as dropout rates."""
    self._unused -= set(names)

  def refuse_unused(self) -> None:
    """Raise UserError, naming the first field that was not used."""
    for name, allowed in _REQUIRED.items():
      self.require(name, *allowed)
    skipped = sorted(name for name in self._unused if _SKIPPED.fullmatch(name))
    self._warn_of_skipped(skipped)
    for name in sorted(self._unused.difference(skipped)):
      raise UserError(
        f"{self.origin}: field {name!r} is {quote_name(self.values[name])}, which this model "
        "type is not known to have; remove it if it does not matter"
      )

  def _warn_of_skipped(self, names: list[str]) -> None:
    if not names or (self.origin, *names) in _warned:
      return
    _warned.add((self.origin, *names))
    fields = ", ".join(map(quote_name, names))
    _log.warning("%s: ignored %s, which cannot change what the model computes", self.origin, fields)

  def refusal(self, name: str, value: Any, expected: str) -> UserError:
    """Return the error for a field whose value no model here has."""
    return UserError(
      f"{self.origin}: field {name!r} is {quote_name(value)}, expected {expected}; no model "
      "here computes that"
    )


def find_key(table: dict[str, str], value: str) -> str:
  """Return the first key of a table with this value."""
  for key, candidate in table.items():
    if candidate == value:
      return key
  raise KeyError(value)
