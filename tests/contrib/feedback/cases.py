"""The cases of learning from feedback in tests of the core."""

# Recipes that need the topic, in configs/.
RECIPES = (
  "finetune/grpo.py",
  "finetune/orpo.py",
  "finetune/preferences.py",
  "finetune/reward.py",
  "finetune/sums.py",
)

# tests/data/test_addressing.py
TASKS = {
  "preferences": [{"file": "jsonl", "length": 64}],
  "prompts": [
    {
      "file": "jsonl",
      "prompt": "{prompt}",
      "fields": ["chosen"],
      "prompt_length": 64,
      "new_tokens": 8,
    }
  ],
}


def _preferences(**options):
  from t5x_like.contrib.feedback.tasks import preferences  # opens TensorFlow

  return preferences.Arguments(**options)


# tests/fuzz/test_corpora.py
TASKS_OF_RECORDS = {"preferences": _preferences}

# tests/objectives/test_every_objective.py
OBJECTIVE_RECIPES = {name: f"configs/finetune/grpo.py:{name},debug" for name in ("rloo", "ppo")}

# tests/test_resume_objectives.py
RESUMED_RECIPES = {
  "configs/finetune/grpo.py": (),
  "configs/finetune/grpo.py:rloo,lora": (),
  "configs/finetune/grpo.py:ppo": ("--config.objective.minibatches=2",),
  "configs/finetune/orpo.py": (),
  "configs/finetune/preferences.py": (),
  "configs/finetune/reward.py": (),
}

# Evaluators that need a run, so that tests/test_evaluate.py leaves them out.
EVALUATORS_OF_RUNS = {"reward": "test_reward_runs.py"}

# tests/objectives/test_declarations.py
METRICS_OF_OLDER_RUNS = {"dpo": {"step", "eval/a/loss"}}

# tests/planning/test_plan.py
RECIPES_WITHOUT_DECODING_STEP = {
  "configs/finetune/preferences.py:debug": "task preferences has several rows of tokens"
}


def _scored_rewards():
  from tests.contrib.feedback import split_case  # opens TensorFlow

  return split_case.CASE


# tests/evals/test_splits.py
SPLIT_CASES = {"reward": _scored_rewards}
