"""The cases of efficient attention in tests of the core."""

# Recipes that need the topic, in configs/.
RECIPES = ("bigbird/base.py", "linformer/base.py", "t_dmca/base.py")

# tests/nn/cores/test_core_models.py, on rows of 30 tokens: cores by name, and the models with them.
CORES = {
  "bigbird": {"name": "bigbird", "block": 4, "random_blocks": 1},
  "linformer": {"name": "linformer", "k": 6, "length": 30, "share": "layerwise"},
  "memory_compressed": {"name": "memory_compressed", "stride": 3},
  "compressed_turns": (
    {"name": "local", "window": 4},
    {"name": "memory_compressed", "stride": 2},
  ),
}
CORES_OF_ENCODERS = dict.fromkeys(("bigbird", "linformer", "memory_compressed"))
CORES_OF_DECODERS = dict.fromkeys(("memory_compressed", "compressed_turns"))
CORES_WITHOUT_PARAMETERS = dict.fromkeys(("bigbird",))

# tests/nn/cores/test_cores.py: a core and the kind of its mask.
SAVED_WEIGHTS = {"bigbird": ({"name": "bigbird", "block": 2, "random_blocks": 1}, "full")}

# tests/models/families.py. All tokens see BigBird's last block, which padding moves.
SMALL_CORES = {
  "bigbird": {"block": 1, "random_blocks": 1},
  "linformer": {"k": 4, "length": 16, "sequences": 2},
}
LACKING_FEATURES = {"bigbird": {"packing", "length"}, "memory_compressed": {"packing"}}
BOUNDED_CORES = dict.fromkeys(("bigbird", "memory_compressed"))
TRAINING_PARAMETERS = {"t_dmca": {"decoder/blocks/moe_2/layer/router/noise"}}

# tests/models/test_sizes.py: the number of parameters, and its source.
_BIGBIRD_SOURCE = "BigBirdForMaskedLM less the pooler it does not read"
_ROBERTA = 124_697_433
_MATRIX = 256 * 512
ENCODER_SIZES = {
  ("bigbird", "bigbird-roberta-base"): (128_111_286 - 590_592, _BIGBIRD_SOURCE),
  ("bigbird", "bigbird-roberta-large"): (360_225_974 - 1_049_600, _BIGBIRD_SOURCE),
  ("linformer", "linformer-base-256"): (
    _ROBERTA + 12 * 2 * _MATRIX,
    "RoBERTa and two projections in each layer",
  ),
  ("linformer", "linformer-base-256-kv"): (
    _ROBERTA + 12 * _MATRIX,
    "RoBERTa and a projection in each layer",
  ),
  ("linformer", "linformer-base-256-layerwise"): (
    _ROBERTA + _MATRIX,
    "RoBERTa and one projection",
  ),
}

# tests/nn/test_pipeline.py, on rows of 12 tokens. The stack's matrix is on every stage.
PIPELINED_CORES = {
  "layerwise": {"name": "linformer", "k": 4, "length": 12, "share": "layerwise", "sequences": 2}
}

# tests/test_predict.py
PADDED_LENGTHS = {"bigbird/base": 64}

# tests/test_recipes.py
UNDECAYED = {"linformer/base": "nothing", "bigbird/base": "vectors"}
RATE_DECAYS = {"bigbird/base.py": "from_start"}

# tests/test_resume_objectives.py
RESUMED_RECIPES = {
  "configs/linformer/base.py": ("--config.model.design.core.share=layerwise",),
  "configs/t_dmca/base.py:moe_128": (),
}

# tests/parity/cases.py: arguments of its `Case`; their outputs are in tests/golden.
BIGBIRD = dict(
  vocab_size=64,
  hidden_size=16,
  num_hidden_layers=2,
  num_attention_heads=4,
  intermediate_size=32,
  max_position_embeddings=64,
)
SPARSE = BIGBIRD | dict(block_size=4, num_random_blocks=1)
CONFIG = dict(config="BigBirdConfig", kind="encoder")
PARITY = {
  "bigbird": CONFIG
  | dict(
    model="BigBirdForPreTraining",
    values=SPARSE,
    length=42,
    logits="prediction_logits",
    outputs={"seq_relationship_logits": "next_sentence_logits"},
  ),
  "bigbird-mlm": CONFIG
  | dict(
    model="BigBirdForMaskedLM",
    values=SPARSE | dict(rescale_embeddings=True, use_bias=False),
    length=44,
  ),
  "bigbird-full": CONFIG
  | dict(model="BigBirdForMaskedLM", values=BIGBIRD | dict(attention_type="original_full")),
  "bigbird-classification": CONFIG
  | dict(model="BigBirdForSequenceClassification", values=SPARSE | dict(num_labels=3), length=40),
  "bigbird-multiple-choice": CONFIG
  | dict(model="BigBirdForMultipleChoice", values=SPARSE, length=40, rows=4),
  "bigbird-tokens": CONFIG
  | dict(model="BigBirdForTokenClassification", values=SPARSE | dict(num_labels=3), length=40),
  "bigbird-body": CONFIG
  | dict(
    model="BigBirdModel",
    values=SPARSE,
    length=40,
    logits="last_hidden_state",
    outputs={"pooler_output": "pooled"},
  ),
}
