"""Check the fields of a Hugging Face `config.json`: types, ranges, and bounds by the tensors.

Every field that any family reads is listed once, and is checked before use. A null field counts as
missing. Sections are objects within the config; their fields are checked alike.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any

from t5x_like import slots
from t5x_like.errors import UserError
from t5x_like.files.file_names import quote_name
from t5x_like.slots import Condition

MAX_SIZE = 2**31 - 1  # the largest size, whatever the files hold

Size = Annotated[
  int, Condition(f"a whole number from 1 to {MAX_SIZE}", lambda n: 0 < n <= MAX_SIZE)
]
Count = Annotated[
  int, Condition(f"a whole number from 0 to {MAX_SIZE}", lambda n: 0 <= n <= MAX_SIZE)
]
Id = Annotated[
  int, Condition(f"an id, from 0 to {MAX_SIZE}, or -1 for none", lambda n: -1 <= n <= MAX_SIZE)
]
Number = Annotated[
  float, Condition("a finite number from 0 on", lambda x: 0 <= x and math.isfinite(float(x)))
]
Factor = Annotated[
  float, Condition("a finite number above 0", lambda x: 0 < x and math.isfinite(float(x)))
]
Strings = Annotated[
  list, Condition("a list of texts", lambda texts: all(isinstance(text, str) for text in texts))
]
Ids = Annotated[
  list, Condition("a list of ids", lambda ids: len(ids) > 0 and all(slots.fits(i, Id) for i in ids))
]
Sizes = Annotated[
  list,
  Condition(
    "a list of sizes",
    lambda sizes: len(sizes) > 0 and all(slots.fits(size, Size) for size in sizes),
  ),
]
Counts = Annotated[
  list,
  Condition(
    "a list of whole numbers", lambda counts: all(slots.fits(count, Count) for count in counts)
  ),
]

Factors = Annotated[
  list,
  Condition(
    "a list of finite numbers above 0",
    lambda factors: all(slots.fits(factor, Factor) for factor in factors),
  ),
]

_NAMES_BY_TYPE: dict[Any, str] = {
  # Widths and lengths: each is the size of a tensor's axis or divides one.
  Size: """
    position_buckets inner_group_num num_hidden_groups attention_heads block_size d_ff d_head
    d_inner d_kv d_model emb_dim decoder_attention_heads decoder_ffn_dim decoder_hidden_size
    decoder_intermediate_size decoder_num_attention_heads embed_dim embedding_size
    encoder_attention_heads encoder_ffn_dim ffn_dim ffn_hidden_size global_attn_every_n_layers
    head_dim hidden_size intermediate_size n_embd n_embed n_head n_heads n_inner n_positions
    num_attention_heads num_channels num_key_value_heads num_kv_heads num_labels
    num_ln_in_parallel_attn num_queries projection_dim relative_attention_max_distance
    relative_attention_num_buckets sliding_window vocab_size window_size word_embed_proj_dim
    query_pre_attn_scalar max_position_embeddings original_max_position_embeddings decoder_layers
    decoder_num_hidden_layers depth encoder_layers n_layer n_layers num_decoder_layers num_experts
    num_experts_per_tok num_hidden_layers num_layers num_local_experts moe_intermediate_size
    num_stages in_chans projection_size sliding_window_pattern kv_lora_rank q_lora_rank
    qk_nope_head_dim qk_rope_head_dim rotary_dim v_head_dim n_group topk_group n_routed_experts
    n_shared_experts
  """,
  Count: """
    encoder_sparse_step decoder_sparse_step local_attention num_random_blocks
    num_sparse_encoder_layers n_langs type_vocab_size max_window_layers num_classes
    num_register_tokens first_k_dense_replace num_nextn_predict_layers
  """,
  Size | Sizes: "image_size img_size patch_size num_heads",
  Sizes: "channels depths hidden_sizes layers",
  Factors: "short_factor long_factor",
  Counts: "pretrained_window_sizes mlp_only_layers",
  Id: """
    max_relative_positions pad_token_id bos_token_id cls_token_id sep_token_id
    decoder_start_token_id forced_bos_token_id
  """,
  Id | Ids: "eos_token_id forced_eos_token_id",
  Number: """
    initializer_range layer_norm_eps layer_norm_epsilon norm_eps rms_norm_eps router_aux_loss_coef
    router_jitter_noise router_z_loss_coef init_values layerscale_value layer_scale_init_value
    mscale mscale_all_dim
  """,
  Factor: """
    attn_logit_softcapping factor final_logit_softcapping global_rope_theta high_freq_factor
    local_rope_theta attention_factor beta_fast beta_slow rope_local_base_freq logit_scale
    low_freq_factor mlp_ratio partial_rotary_factor rope_theta rotary_emb_base rotary_pct
    softmax_scale swiglu_alpha swiglu_limit routed_scaling_factor
  """,
  bool: """
    gelu_activation use_lang_emb relative_attention share_att_key position_biased_input alibi
    attention_bias bias do_layer_norm_before enable_bias layer_norm_elementwise_affine mlp_bias
    multi_query new_decoder_architecture norm_bias parallel_attn qkv_bias rescale_embeddings
    scale_decoder_outputs scale_embedding tie_word_embeddings use_absolute_embeddings use_bias
    use_parallel_residual use_qk_norm norm_topk_prob truncate use_sliding_window use_swiglu_ffn
    class_token rope_interleave
  """,
  str: """
    activation activation_function afn architecture attention_type backbone dense_act_fn
    feed_forward_proj ff_activation global_pool hidden_act hidden_activation layer_type model_type
    rope_type scoring_func topk_method type
  """,
  Strings: "architectures layer_types out_features",
  dict: """
    attn_config backbone_config full_attention id2label model_args pretrained_cfg rope_parameters
    rope_scaling sliding_attention text_config vision_config
  """,
}
TYPES = {name: field_type for field_type, names in _NAMES_BY_TYPE.items() for name in names.split()}
_SECTIONS = set(_NAMES_BY_TYPE[dict].split()) - {"id2label", "pretrained_cfg"}
# Counts of units with tensors of their own: there are no more units than tensors.
_COUNTS = set(
  """
  decoder_layers decoder_num_hidden_layers depth depths encoder_layers n_layer n_layers
  num_decoder_layers num_experts num_hidden_layers num_layers num_local_experts num_hidden_groups
  inner_group_num
  """.split()
)
# Sizes that may exceed every tensor.
_UNBOUNDED = set(
  """
  max_position_embeddings original_max_position_embeddings relative_attention_max_distance
  sliding_window query_pre_attn_scalar sliding_window_pattern global_attn_every_n_layers
  """.split()
)


def check_fields(
  values: dict[str, Any],
  origin: str,
  tensor_count: int | None = None,
  parameter_count: int | None = None,
) -> None:
  """Refuse a config with a field of the wrong type, out of range, or too large for the tensors.

  Args:
    values: the parsed config, or a section of it.
    origin: the file, for messages.
    tensor_count: the number of tensors in the config's directory; None without files.
    parameter_count: the number of values in these tensors.
  Raises:
    UserError: a field is invalid; names the first.
  """
  for name, value in values.items():
    field_type = TYPES.get(name)
    if value is None or field_type is None:
      continue
    if not slots.fits(value, field_type):
      expected = slots.describe_type(field_type)
      raise UserError(
        f"{origin}: field {name!r} is {quote_name(value)}, expected {expected}; correct it"
      )
    if name in _SECTIONS:
      check_fields(value, f"{origin}, {name}", tensor_count, parameter_count)
    largest = max(_whole_numbers(value), default=0)
    if name in _COUNTS and tensor_count is not None and largest > tensor_count:
      raise UserError(
        f"{origin}: field {name!r} is {quote_name(value)}, expected no more than the "
        f"{tensor_count:,} tensors of the files; the config is of another model"
      )
    is_size = field_type in (Size, Size | Sizes, Sizes, Count) and name not in _UNBOUNDED
    if is_size and parameter_count is not None and largest > parameter_count:
      raise UserError(
        f"{origin}: field {name!r} is {quote_name(value)}, expected no more than the "
        f"{parameter_count:,} values that the files hold; the config is of another model"
      )


def _whole_numbers(value: Any) -> Iterator[int]:
  candidates = value if isinstance(value, list) else [value]
  for candidate in candidates:
    if isinstance(candidate, int) and not isinstance(candidate, bool):
      yield candidate
