"""Write `tests/golden/*.npz` from `transformers`.

    PYTHONPATH=tests:. python -m parity.write_golden [CASE …]

A file holds config.json, the names and shapes of the tensors, the inputs and the outputs; values of
tensors follow from their names (`cases.tensor`).
"""

import json
import pathlib
import sys
import tempfile

import numpy as np

from parity import cases, reference

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


def main(names: list[str]) -> None:
  from safetensors.numpy import load_file

  for name in names or cases.CASES:
    case = cases.CASES[name]
    with tempfile.TemporaryDirectory() as directory:
      directory = pathlib.Path(directory)
      model = reference.make(case, directory)
      batch = cases.inputs(case, *reference.ids(model))
      outputs = reference.run(case, model, batch)
      shapes = {n: x.shape for n, x in load_file(directory / "model.safetensors").items()}
      config = (directory / "config.json").read_text()
    arrays = {f"batch/{n}": x for n, x in batch.items()}
    arrays |= {f"outputs/{n}": x for n, x in outputs.items()}
    np.savez_compressed(
      GOLDEN / f"{name}.npz",
      config=config,
      shapes=json.dumps(shapes),
      pad=reference.ids(model)[0],
      **arrays,
    )
    print(name, {n: x.shape for n, x in outputs.items()})


if __name__ == "__main__":
  main(sys.argv[1:])
