"""The cases of retrieval in tests of the core."""

# Recipes that need the topic, in configs/.
RECIPES = ("realm/base.py", "realm/facts.py")

# tests/data/test_addressing.py
TASKS = {
  "open_qa": [
    {"file": "jsonl", "inputs": "{prompt}", "targets": "{chosen}", "retrieved": 2}
    | {"passages": "facts:30", "passages_split": "passages"}
  ],
  "passage_pairs": [{"file": "jsonl", "inputs": "{prompt}", "passage": "{chosen}"}],
}

# tests/objectives/test_every_objective.py
OBJECTIVE_RECIPES = {"inverse_cloze": "configs/realm/base.py:cloze,debug"}

# tests/test_resume_objectives.py
RESUMED_RECIPES = {
  "configs/realm/base.py": ("--config.objective.refresh_every=5",),
  "configs/realm/base.py:cloze": (),
}

# tests/test_recipes.py
RATE_DECAYS = {"realm/base.py": "from_start"}

# Evaluators that tests/contrib/retrieval/test_retrieval.py tests by itself.
EVALUATORS_TESTED_ELSEWHERE = {"open_qa": "test_retrieval.py"}

# tests/planning/test_plan.py
RECIPES_WITHOUT_DECODING_STEP = {"configs/realm/base.py:debug": "realm is an encoder"}
