"""Runs of a model whose inputs and outputs stay where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .buffer import Buffer, sized
from .manifest import Input
from .steps import Shape


class Bound:
    """What runs of one kind read and write, bound once; what depends on the sizes of a chunk is bound again where they change.

    `outputs` have a name in the file, a dtype and a shape. `fits` is the caller's: for which sizes it was made fit. `memory` is that of
    the inputs, where numpy can write all of it.
    """

    def __init__(self, session: Any, inputs: Sequence[Input], outputs: Mapping[str, tuple[str, str, Shape]]):
        self.binding = session.io_binding()
        self.fits: Any = None
        self.inputs: dict[str, Buffer] = {}
        self.memory: dict[str, np.ndarray] | None = None
        self._wanted, self._told = inputs, outputs
        self._outputs: dict[str, Buffer | None] = dict.fromkeys(outputs)
        self._read: dict[str, np.ndarray] = {}
        self._whole = False
        for held, _, _ in outputs.values():             # before anything else that is bound, so that they come first
            self.binding.bind_output(held, "cpu")

    def fit(self, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]) -> None:
        """Get memory for inputs of these shapes and outputs of these sizes."""
        for x in self._wanted:
            if x.name not in self.inputs or self.inputs[x.name].shape != shapes[x.name]:
                self.inputs[x.name] = Buffer.zeros(shapes[x.name], x.dtype)
                self.inputs[x.name].bind_input(self.binding, x.name)
        for name, (held, dtype, told) in self._told.items():
            shape, old = sized(told, sizes), self._outputs[name]
            if shape is None:
                self._outputs[name] = None
                self.binding.bind_output(held, "cpu")
            elif old is None or old.shape != shape:
                self._outputs[name] = made = Buffer.zeros(shape, dtype)
                made.bind_output(self.binding, held)
        arrays = {k: b.array for k, b in self.inputs.items() if b.array is not None and b.dtype != "bfloat16"}
        self.memory = arrays if len(arrays) == len(self.inputs) else None
        self._read = {k: b.array for k, b in self._outputs.items() if b is not None and b.array is not None and b.dtype != "bfloat16"}
        self._whole = len(self._read) == len(self._told)

    def results(self) -> dict[str, np.ndarray]:
        """The outputs, in memory that the next run may overwrite; bfloat16 as float32."""
        if self._whole:
            return self._read
        made = dict(zip(self._outputs, self.binding.get_outputs(), strict=False))
        return {k: made[k].numpy() if b is None else b.numbers() for k, b in self._outputs.items()}
