"""Read and write one family of Hugging Face model types in each module.

A module defines `TYPES`, a tuple of `config_table.ModelType`: the tables of its model types. The
original type of a model is tried first when it is written, then the others in their order.

A module without tables defines:
  MODEL_TYPES: the values of `model_type` that it reads.
  MODELS: our classes that it writes.
  read_config(fields, tensor_names) -> (class, arguments): the model that a config describes.
  write_config(model, model_type) -> dict: the config of a model. `model_type` is the type that the
    model was loaded from, or None. Raises a `UserError` for designs that the types cannot express.
  map_tensors(mapping): adds every tensor to the mapping, for reading and writing alike.
  BODY_PREFIX, optional: the prefix of the body's tensors, which files of the body alone lack.
  canonical_name(name), optional: the tensor that another name in a file stands for.
  file_naming(model), optional: returns a function from the name of a tensor to its name in the
    model's file.
"""
