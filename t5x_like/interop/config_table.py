"""Two-way tables between the fields of a `config.json` and the attributes of a model's variant.

A family lists each field once. From the list, `ModelType` reads a variant, writes a config, and
refuses configs and variants that the other side cannot express: a variant is written only if its
config reads back as the same.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from t5x_like.architectures.design import Design, Variant
from t5x_like.errors import UserError, one_line
from t5x_like.interop.config_fields import Fields
from t5x_like.interop.field_types import TYPES
from t5x_like.interop.tensor_mapping import TensorMapping, TensorTable
from t5x_like.interop.variant_paths import (
  canonical_attributes,
  complete_dims,
  get_attribute,
  is_same,
  replace_attributes,
)
from t5x_like.nn.dims import Dims


class Entry:
  """One or more fields of a config, and the attributes that they set."""

  def read(self, fields: Fields) -> dict[str, Any]:
    """Return the values of attributes by path, as `variant_paths` describes."""
    return {}

  def write(self, variant: Any) -> dict[str, Any]:
    """Return the values of fields; raise UserError if they cannot express the variant."""
    return {}

  def tensor_names(self, variant: Any) -> set[str]:
    """Return the tensors whose presence in a file sets attributes of this entry."""
    return set()


@dataclasses.dataclass(frozen=True)
class Field(Entry):
  """A field that has the value of an attribute.

  Attributes:
    name: the field.
    attribute: the path of the attribute.
    default: the value in configs without the field; by default, these are refused.
    nullable: whether null is a value; otherwise it means that the field is missing.
    written: whether configs are written with the field.
    alias: another name of the field, which precedes it in a config that has both.

  Raises:
    LookupError: `field_types` has no type for the field, whose values would be read unchecked.
  """

  name: str
  attribute: str
  default: Any = ...
  nullable: bool = False
  written: bool = True
  alias: str | None = None

  def __post_init__(self):
    for name in (self.name, self.alias):
      if name is not None and name not in TYPES:
        raise LookupError(f"{name}: this field has no type; add it to interop/field_types.py")

  def read(self, fields: Fields) -> dict[str, Any]:
    take = fields.take_nullable if self.nullable else fields.take
    value = fields.take(self.alias, None) if self.alias else None
    if value is None:
      value = take(self.name, self.default)
    fields.ignore(self.name)
    return {self.attribute: value}

  def write(self, variant: Any) -> dict[str, Any]:
    return {self.name: get_attribute(variant, self.attribute)} if self.written else {}


@dataclasses.dataclass(frozen=True)
class Choice(Entry):
  """A field whose values stand for values of an attribute.

  Attributes:
    name, attribute, default: see `Field`.
    table: value of the field -> value of the attribute; the first of equal ones is written.
    written: whether configs are written with the field.
  """

  name: str
  attribute: str
  table: Mapping[str | bool, Any]
  default: Any = ...
  written: bool = True

  def read(self, fields: Fields) -> dict[str, Any]:
    return {self.attribute: fields.choose(self.name, self.table, self.default)}

  def write(self, variant: Any) -> dict[str, Any]:
    value = get_attribute(variant, self.attribute)
    for name, candidate in self.table.items():
      if candidate == value:
        return {self.name: name} if self.written else {}
    choices = " or ".join(map(repr, dict.fromkeys(self.table.values())))
    raise UserError(f"{self.attribute} is {value!r}; this model type supports only {choices}")


class Constant(Entry):
  """A field that has the same value in all models of the type, and is written."""

  def __init__(self, name: str, value: Any):
    self.name = name
    self.value = value

  def read(self, fields: Fields) -> dict[str, Any]:
    fields.require(self.name, self.value)
    return {}

  def write(self, variant: Any) -> dict[str, Any]:
    return {self.name: self.value}


class WriteOnly(Entry):
  """A field that is written with the same value in all models and ignored on reading."""

  def __init__(self, name: str, value: Any):
    self.name = name
    self.value = value

  def read(self, fields: Fields) -> dict[str, Any]:
    fields.ignore(self.name)
    return {}

  def write(self, variant: Any) -> dict[str, Any]:
    return {self.name: self.value}


class Required(Entry):
  """A field that is not written and, if present, must have one of some values."""

  def __init__(self, name: str, *values: Any):
    self.name = name
    self.values = values

  def read(self, fields: Fields) -> dict[str, Any]:
    fields.require(self.name, *self.values)
    return {}


class Ignored(Entry):
  """Fields that do not affect logits, such as dropout rates."""

  def __init__(self, *names: str):
    self.names = names

  def read(self, fields: Fields) -> dict[str, Any]:
    fields.ignore(*self.names)
    return {}


@dataclasses.dataclass(frozen=True)
class HasTensor(Entry):
  """An attribute that a file expresses by having a tensor.

  Attributes:
    tensor: the name of the tensor.
    attribute: the path of the attribute.
    present: its value in models that have the tensor; in others it is the opposite.
  """

  tensor: str
  attribute: str
  present: bool = True

  def read(self, fields: Fields) -> dict[str, Any]:
    return {self.attribute: (self.tensor in fields.tensor_names) == self.present}

  def tensor_names(self, variant: Any) -> set[str]:
    return {self.tensor} if get_attribute(variant, self.attribute) == self.present else set()


@dataclasses.dataclass(frozen=True)
class Numbers(Field):
  """A list of numbers, such as one for each stage, which is a tuple in a variant."""

  def read(self, fields: Fields) -> dict[str, Any]:
    return {path: tuple(numbers) for path, numbers in super().read(fields).items()}

  def write(self, variant: Any) -> dict[str, Any]:
    return {name: list(numbers) for name, numbers in super().write(variant).items()}


@dataclasses.dataclass(frozen=True)
class Section(Entry):
  """An object within a config, with a table of its own.

  Attributes:
    name: the field that contains the object.
    part: the path of the part of the variant that the object describes, such as "image"; "" for
      the whole variant.
    entries: the fields of the object; their paths begin at the part.
    write_shared: returns further fields of the object, which reading ignores, from the variant.
    read_defaults: returns the values of missing fields, from the config.
  """

  name: str
  part: str
  entries: tuple[Entry, ...]
  write_shared: Callable[[Any], dict[str, Any]] = lambda variant: {}
  read_defaults: Callable[[Fields], dict[str, Any]] = lambda fields: {}

  def read(self, fields: Fields) -> dict[str, Any]:
    section = fields.section(self.name, self.read_defaults(fields))
    values: dict[str, Any] = {}
    for entry in self.entries:
      values |= entry.read(section)
    section.refuse_unused()
    prefix = f"{self.part}." if self.part else ""
    return {prefix + path: value for path, value in values.items()}

  def write(self, variant: Any) -> dict[str, Any]:
    part = getattr(variant, self.part) if self.part else variant
    values: dict[str, Any] = {}
    for entry in self.entries:
      values |= entry.write(part)
    return {self.name: values | self.write_shared(variant)}


@dataclasses.dataclass(frozen=True)
class Custom(Entry):
  """Fields that functions translate.

  Attributes:
    read_values: returns values of attributes, as `Entry.read`; by default none.
    write_fields: returns values of fields, as `Entry.write`; by default none.
  """

  read_values: Callable[[Fields], dict[str, Any]] = lambda fields: {}
  write_fields: Callable[[Any], dict[str, Any]] = lambda variant: {}

  def read(self, fields: Fields) -> dict[str, Any]:
    return self.read_values(fields)

  def write(self, variant: Any) -> dict[str, Any]:
    return self.write_fields(variant)


@dataclasses.dataclass(frozen=True)
class ModelType:
  """A model type of `transformers`: its config and its tensors.

  Attributes:
    name: the value of `model_type`.
    class_name: the class in `architectures` of a written config; "" if an entry writes it.
    model_class: our class.
    base: a design or a variant of the type, from which attributes that no entry sets are taken.
    entries: the fields of the config.
    tensors: the tensors, as a table or a function that maps them.
    tied: the name of a tensor that a file may contain -> the tensor that it repeats, in models
      without a parameter for the first.
    ignored_suffixes: endings of tensor names to skip, such as buffers of older versions.
    body_prefix: the prefix of the body's tensors, which files of the body alone lack; any prefix
      that all tensors share, if None.
    canonical_name: returns the tensor that another name in a file stands for.
    other_classes: further classes of ours that are written as this type.
    free: paths of attributes, or of their owners, that a config does not express and that may have
      any value.
  """

  name: str
  class_name: str
  model_class: type
  base: Any
  entries: tuple[Entry, ...]
  tensors: TensorTable | Callable[[TensorMapping], None]
  tied: Mapping[str, str] = dataclasses.field(default_factory=dict)
  ignored_suffixes: tuple[str, ...] = ()
  body_prefix: str | None = ""
  canonical_name: Callable[[str], str] = str
  other_classes: tuple[type, ...] = ()
  free: tuple[str, ...] = ()

  def read(self, fields: Fields) -> tuple[type, dict[str, Any]]:
    """Return the model that a config describes: its class and the arguments of the class.

    Raises:
      UserError: a field is missing, or has a value that no model of the type has.
    """
    with refuse_contradictory_sizes(fields.origin):
      return self.model_class, {"variant": self.read_variant(fields)}

  def read_variant(self, fields: Fields) -> Any:
    """Return the variant that a config describes."""
    values: dict[str, Any] = {}
    for entry in self.entries:
      values |= entry.read(fields)
    return self.assemble(values)

  def assemble(self, values: dict[str, Any]) -> Any:
    """Return the base with attributes replaced by path, and with complete sizes."""
    changes = {}
    sizes_by_stack: dict[str, dict[str, Any]] = {}  # keys such as "text.", "" for the only stack
    for path, value in values.items():
      stack, separator, size_name = path.partition("dims.")
      if separator:
        sizes_by_stack.setdefault(stack, {})[size_name] = value
      else:
        changes[path] = value
    for stack, sizes in sizes_by_stack.items():
      dims = complete_dims(sizes)
      changes[f"{stack}dims"] = dims
      _inherit_sizes(changes, dims)
    base = self.base
    if isinstance(base, Design):
      base = Variant(changes["dims"], base, changes["vocab_size"])
    return replace_attributes(base, changes)

  @property
  def classes(self) -> tuple[type, ...]:
    """Return our classes that the type can express."""
    return (self.model_class, *self.other_classes)

  def write(self, model: Any, original_type: str | None = None) -> dict[str, Any]:
    """Return the config of a model.

    Args:
      original_type: the type that the model was loaded as.

    Raises:
      UserError: a config of the type cannot express the model; names the attribute.
    """
    variant = model.variant
    values = self.identity()
    for entry in self.entries:
      values |= entry.write(variant)
    self._require_faithful(values, variant)
    return values

  def identity(self) -> dict[str, Any]:
    """Return the fields of a config that name the type."""
    return {"architectures": [self.class_name], "model_type": self.name}

  def _require_faithful(self, values: dict[str, Any], variant: Any) -> None:
    """Refuse a config that does not read back as the variant that it was written from."""
    tensor_names: set[str] = set()
    for entry in self.entries:
      tensor_names |= entry.tensor_names(variant)
    fields = Fields(values, f"a config of {self.name}", tensor_names)
    with refuse_contradictory_sizes(fields.origin):
      expected = canonical_attributes(self.read_variant(fields))
    for path, value in canonical_attributes(variant).items():
      if not self._is_free(path) and not is_same(value, expected.get(path)):
        raise UserError(
          f"{path} is {get_attribute(variant, path)!r}; {self.name} supports only "
          f"{_format(expected.get(path))}"
        )

  def _is_free(self, path: str) -> bool:
    return any(path == free or path.startswith(f"{free}.") for free in self.free)

  def file_naming(self, model: Any) -> Callable[[str], str]:
    """Return a function from the name of a tensor to its name in the model's file."""
    return str

  def map_tensors(self, mapping: TensorMapping) -> None:
    """Add every tensor to a mapping, for reading and writing alike."""
    mapping.ignored_suffixes = self.ignored_suffixes
    if callable(self.tensors):
      self.tensors(mapping)
    else:
      mapping.add_table(self.tensors)
    names = {tensor.name for tensor in mapping.tensors}
    mapping.tied |= {copy: name for copy, name in self.tied.items() if copy not in names}


def _inherit_sizes(changes: dict[str, Any], dims: Dims) -> None:
  """Replace sizes of a decoder and of a token table that equal the stack's by None."""
  inherited = {"embed": dims.embed, "decoder_heads": dims.heads, "decoder_mlp": dims.mlp}
  for path, size in inherited.items():
    if changes.get(path) == size:
      changes[path] = None
  if "decoder_layers" in changes and changes["decoder_layers"] is None:
    changes["decoder_layers"] = dims.layers


def _format(value: Any) -> str:
  """Return the text of a value, or of the different values of layers."""
  if isinstance(value, list):
    return " and ".join(dict.fromkeys(map(repr, value)))
  return repr(value)


@contextlib.contextmanager
def refuse_contradictory_sizes(where: str):
  """Turn errors from contradictory layer sizes into a `UserError` that names the config."""
  try:
    yield
  except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
    raise UserError(
      f"{where}: its sizes make no model ({type(error).__name__}: {one_line(error)[:200]}), "
      "expected sizes that fit each other; correct the config, or copy it again"
    ) from error
