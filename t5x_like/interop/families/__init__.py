"""One file for each family of Hugging Face model types.

A module has
  MODEL_TYPES
  MODELS: our classes that it writes.
  build(fields, names) -> (class, arguments): from a config and the names of the tensors.
  config(model, model_type) -> dict: `model_type` is the type the model was loaded from, or None.
    Raises a `UserError` for designs that the types cannot express.
  tensors(mapping): fills in the mapping, for reading and writing alike.
  BODY_PREFIX, optional: the prefix of the body's tensors, which files of the body alone lack.
  renamed(name), optional: the tensor that another name in a file stands for.
  written(model), optional: a function from the name of a tensor to its name in the model's file.
"""
