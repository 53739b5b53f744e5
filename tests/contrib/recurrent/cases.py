"""The cases of recurrent baselines in tests of the core."""

# Recipes that need the topic, in configs/. BERT's features are read by an LSTM.
RECIPES = ("bert/features.py", "gpt/lstm.py")

# tests/models/test_encoders.py: a head and the shapes of its outputs, for 4 rows of 10 tokens.
ENCODER_HEADS = {
  "bilstm": (
    {
      "name": "bilstm",
      "states": [0, -1],
      "combine": "weighted_sum",
      "dropout": 0.5,
      "head": "spans",
    },
    {"logits": (4, 10, 2), "start_logits": (4, 10), "end_logits": (4, 10)},
  )
}

# tests/benchmarks/test_heads_above.py
HEADS_ABOVE = {
  "bilstm": {
    "name": "bilstm",
    "head": {"name": "tokens", "labels": 2},
    "states": [0, -1],
    "hidden": 8,
    "dropout": 0.1,
  }
}

# tests/models/test_quantized_families.py
UNQUANTIZED_FAMILIES = dict.fromkeys(("lstm",))

# tests/test_resume_objectives.py
RESUMED_RECIPES = {"configs/gpt/lstm.py": ()}
