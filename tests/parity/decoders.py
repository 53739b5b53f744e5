"""The cases of decoder-only families: name -> (model class, config class, arguments of the
config)."""

GPT = dict(vocab_size=64, n_embd=16, n_layer=2, n_head=4, n_positions=32)
LLAMA = dict(
  vocab_size=64,
  hidden_size=16,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  intermediate_size=40,
)
LLAMA3 = dict(
  rope_type="llama3",
  rope_theta=5e5,
  factor=8.0,
  low_freq_factor=1.0,
  high_freq_factor=4.0,
  original_max_position_embeddings=16,
)
GEMMA2 = LLAMA | dict(head_dim=8, query_pre_attn_scalar=16, sliding_window=4)
BLOOM = dict(vocab_size=64, hidden_size=16, n_layer=2, n_head=4)
MPT = dict(vocab_size=64, d_model=16, n_layers=2, n_heads=4)
NEOX = dict(
  vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
)
OPT = dict(
  vocab_size=64,
  hidden_size=20,
  num_hidden_layers=3,
  num_attention_heads=5,
  ffn_dim=28,
  max_position_embeddings=32,
)
XGLM = dict(
  vocab_size=64, d_model=20, num_layers=3, attention_heads=5, ffn_dim=28, max_position_embeddings=32
)
FALCON = dict(
  vocab_size=64,
  hidden_size=24,
  num_hidden_layers=3,
  num_attention_heads=6,
  bos_token_id=1,
  eos_token_id=2,
)
COHERE = dict(
  vocab_size=64,
  hidden_size=24,
  num_hidden_layers=3,
  num_attention_heads=6,
  num_key_value_heads=2,
  intermediate_size=28,
  bos_token_id=1,
  eos_token_id=2,
)
QWEN = LLAMA | dict(head_dim=6)
YARN = dict(
  rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=8, beta_fast=2.0
)
OLMO = LLAMA | dict(
  hidden_size=24, num_attention_heads=6, num_key_value_heads=3, pad_token_id=0, eos_token_id=1
)
GPT_OSS = LLAMA | dict(head_dim=6, num_local_experts=5, num_experts_per_tok=3, sliding_window=4)
DEEPSEEK = dict(
  vocab_size=64,
  hidden_size=20,
  num_hidden_layers=3,
  num_attention_heads=3,
  num_key_value_heads=3,
  intermediate_size=28,
  moe_intermediate_size=12,
  n_routed_experts=6,
  num_experts_per_tok=3,
  n_group=3,
  topk_group=2,
  first_k_dense_replace=1,
  kv_lora_rank=10,
  q_lora_rank=14,
  qk_nope_head_dim=6,
  qk_rope_head_dim=4,
  v_head_dim=5,
)
MIXTRAL = LLAMA | dict(num_local_experts=4, num_experts_per_tok=2)

MODELS = {
  "llama-dynamic": (
    "LlamaForCausalLM",
    "LlamaConfig",
    LLAMA
    | dict(
      max_position_embeddings=8,
      rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=3.0),
    ),
  ),
  "llama-longrope": (
    "LlamaForCausalLM",
    "LlamaConfig",
    LLAMA
    | dict(
      max_position_embeddings=32,
      rope_parameters=dict(
        rope_type="longrope",
        rope_theta=1e4,
        short_factor=[1.0, 1.2],
        long_factor=[1.5, 4.0],
        original_max_position_embeddings=8,
      ),
    ),
  ),
  "llama-yarn": (
    "LlamaForCausalLM",
    "LlamaConfig",
    LLAMA
    | dict(
      max_position_embeddings=8,
      rope_parameters=dict(
        rope_type="yarn",
        rope_theta=1e4,
        factor=4.0,
        mscale=0.7,
        mscale_all_dim=0.3,
        attn_factor=1.0,
      ),
    ),
  ),
  "gpt-oss": ("GptOssForCausalLM", "GptOssConfig", GPT_OSS),
  "gpt-oss-layers": (
    "GptOssForCausalLM",
    "GptOssConfig",
    GPT_OSS
    | dict(
      num_hidden_layers=3,
      layer_types=["full_attention", "sliding_attention", "sliding_attention"],
      rope_parameters=dict(rope_type="default", rope_theta=1e4),
      attention_bias=False,
      tie_word_embeddings=True,
    ),
  ),
  "deepseek-v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK),
  "deepseek-v3-yarn": (
    "DeepseekV3ForCausalLM",
    "DeepseekV3Config",
    DEEPSEEK
    | dict(
      q_lora_rank=None,
      n_group=1,
      topk_group=1,
      n_shared_experts=2,
      first_k_dense_replace=0,
      norm_topk_prob=False,
      rope_interleave=False,
      rms_norm_eps=1e-5,
      attention_bias=True,
      rope_parameters=YARN | dict(mscale=0.7, mscale_all_dim=1.3),
    ),
  ),
  "gpt1": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT),
  "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT),
  "gpt2-inner": (
    "GPT2LMHeadModel",
    "GPT2Config",
    GPT | dict(n_inner=24, activation_function="relu", pad_token_id=0, tie_word_embeddings=False),
  ),
  "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
  "llama-3.1": (
    "LlamaForCausalLM",
    "LlamaConfig",
    LLAMA | dict(rope_parameters=LLAMA3, eos_token_id=[2, 3]),
  ),
  "llama-biases": (
    "LlamaForCausalLM",
    "LlamaConfig",
    LLAMA
    | dict(
      attention_bias=True,
      mlp_bias=True,
      head_dim=8,
      tie_word_embeddings=True,
      hidden_act="gelu",
      pad_token_id=0,
      rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0),
    ),
  ),
  "mistral": ("MistralForCausalLM", "MistralConfig", LLAMA | dict(sliding_window=4)),
  "mistral-v0.3": (
    "MistralForCausalLM",
    "MistralConfig",
    LLAMA
    | dict(
      sliding_window=None, head_dim=6, rope_parameters=dict(rope_type="default", rope_theta=1e6)
    ),
  ),
  "mixtral": ("MixtralForCausalLM", "MixtralConfig", MIXTRAL),
  "mixtral-window": (
    "MixtralForCausalLM",
    "MixtralConfig",
    MIXTRAL | dict(num_experts_per_tok=3, sliding_window=4),
  ),
  "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA),
  "qwen2-windows": (
    "Qwen2ForCausalLM",
    "Qwen2Config",
    LLAMA
    | dict(num_hidden_layers=3, use_sliding_window=True, sliding_window=4, max_window_layers=1),
  ),
  "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", QWEN | dict(tie_word_embeddings=True)),
  "qwen3-yarn": (
    "Qwen3ForCausalLM",
    "Qwen3Config",
    QWEN | dict(rope_parameters=YARN, attention_bias=True),
  ),
  "qwen3-moe": (
    "Qwen3MoeForCausalLM",
    "Qwen3MoeConfig",
    LLAMA
    | dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=True),
  ),
  "qwen3-moe-step": (
    "Qwen3MoeForCausalLM",
    "Qwen3MoeConfig",
    LLAMA
    | dict(
      num_hidden_layers=4,
      decoder_sparse_step=2,
      num_experts=4,
      num_experts_per_tok=2,
      moe_intermediate_size=12,
      head_dim=6,
    ),
  ),
  "qwen3-moe-gates": (
    "Qwen3MoeForCausalLM",
    "Qwen3MoeConfig",
    LLAMA | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, head_dim=6),
  ),
  "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", OLMO),
  "olmo3": (
    "Olmo3ForCausalLM",
    "Olmo3Config",
    OLMO | dict(num_hidden_layers=4, sliding_window=4, rope_parameters=dict(full_attention=YARN)),
  ),
  "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA2 | dict(num_hidden_layers=6)),
  "gemma3-pattern": (
    "Gemma3ForCausalLM",
    "Gemma3TextConfig",
    GEMMA2
    | dict(
      num_hidden_layers=5,
      layer_types=["sliding_attention", "sliding_attention", "full_attention"]
      + 2 * ["sliding_attention"],
      rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0)),
    ),
  ),
  "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", GEMMA2),
  "gemma2-layers": (
    "Gemma2ForCausalLM",
    "Gemma2Config",
    GEMMA2
    | dict(
      num_hidden_layers=3,
      layer_types=["full_attention", "full_attention", "sliding_attention"],
      attn_logit_softcapping=None,
      final_logit_softcapping=5.0,
      attention_bias=True,
    ),
  ),
  "bloom": ("BloomForCausalLM", "BloomConfig", BLOOM | dict(pad_token_id=0)),
  "bloom-six-heads": ("BloomForCausalLM", "BloomConfig", BLOOM | dict(hidden_size=24, n_head=6)),
  "mpt": ("MptForCausalLM", "MptConfig", MPT),
  "mpt-six-heads": (
    "MptForCausalLM",
    "MptConfig",
    MPT | dict(d_model=24, n_heads=6, attn_config=dict(softmax_scale=0.3)),
  ),
  "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX),
  "neox-serial": (
    "GPTNeoXForCausalLM",
    "GPTNeoXConfig",
    NEOX
    | dict(
      use_parallel_residual=False,
      attention_bias=False,
      hidden_act="gelu_new",
      tie_word_embeddings=True,
      rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5),
    ),
  ),
  "opt": ("OPTForCausalLM", "OPTConfig", OPT),
  "opt-350m": (
    "OPTForCausalLM",
    "OPTConfig",
    OPT
    | dict(
      do_layer_norm_before=False, word_embed_proj_dim=12, activation_function="gelu", pad_token_id=0
    ),
  ),
  "xglm": ("XGLMForCausalLM", "XGLMConfig", XGLM),
  "xglm-unscaled": (
    "XGLMForCausalLM",
    "XGLMConfig",
    XGLM | dict(scale_embedding=False, activation_function="relu", decoder_start_token_id=0),
  ),
  "falcon": ("FalconForCausalLM", "FalconConfig", FALCON),
  "falcon-40b": (
    "FalconForCausalLM",
    "FalconConfig",
    FALCON | dict(new_decoder_architecture=True, num_kv_heads=2, ffn_hidden_size=28, bias=True),
  ),
  "falcon-one-norm": (
    "FalconForCausalLM",
    "FalconConfig",
    FALCON
    | dict(
      new_decoder_architecture=True,
      num_kv_heads=3,
      num_ln_in_parallel_attn=1,
      tie_word_embeddings=False,
    ),
  ),
  "falcon-rw": (
    "FalconForCausalLM",
    "FalconConfig",
    FALCON
    | dict(
      alibi=True,
      bias=True,
      hidden_size=48,  # sixteen heads have slopes that bfloat16 rounds
      num_attention_heads=16,
      parallel_attn=False,
      multi_query=False,
    ),
  ),
  "falcon-serial": (
    "FalconForCausalLM",
    "FalconConfig",
    FALCON
    | dict(
      parallel_attn=False,
      multi_query=False,
      activation="relu",
      rope_parameters=dict(rope_type="linear", rope_theta=1e3, factor=2.0),
    ),
  ),
  "cohere": ("CohereForCausalLM", "CohereConfig", COHERE),
  "cohere-plus": (
    "CohereForCausalLM",
    "CohereConfig",
    COHERE | dict(use_qk_norm=True, attention_bias=True, logit_scale=0.8, hidden_act="gelu"),
  ),
}
