"""One file for each family of Hugging Face model types.

A module has `MODEL_TYPES`; `MODELS`, our classes it writes; `build(fields, names) -> (class, arguments)`, from a
config and the names of the tensors; `config(model, model_type) -> dict`, where `model_type` is what the model was
loaded from or None, which raises a `UserError` for what the types cannot express; and `tensors(mapping)`, which fills
the mapping in, the same for reading and writing.
"""
