"""A model with code of its own that does to its process what it likes: a Python class of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SOURCE: Final = """
import ctypes
import os
import sys
import threading

import torch


class Unruly(torch.nn.Module):
    '''``y`` = ``x``; a negative number is a deed to be done first.'''

    def __init__(self):
        super().__init__()
        self.hoard = []

    def forward(self, x):
        deed = {-1: self.crash, -2: self.leave, -3: self.freeze, -4: self.leak, -5: self.talk}.get(int(x[0]))
        if deed is not None:
            deed()
        return x

    def crash(self):
        ctypes.memset(0, 1, 1)

    def leave(self):
        os._exit(3)

    def freeze(self):
        ctypes.PyDLL(None).pause()  # in C, and with the interpreter's lock

    def leak(self):
        never = threading.Event()
        while len(self.hoard) < 100 and not never.wait(0.02):  # a machine's memory is spared, whatever goes wrong
            self.hoard.append(torch.ones(4 << 20))  # 16 MiB

    def talk(self):
        for stream in (sys.stdout, sys.stderr):
            for _ in range(1 << 16):
                stream.write("blah " * 15 + os.linesep)
            stream.flush()
"""
#: What is asked for each deed.
DEEDS: Final = {"crash": -1.0, "leave": -2.0, "freeze": -3.0, "leak": -4.0, "talk": -5.0}

_CONFIG: Final = """
backend: "pytorch"
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
parameters { key: "class" value { string_value: "model:Unruly" } }
"""


def add_unruly(repository: Path, name: str) -> None:
    """Put the model into the repository; the server has to allow code."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(SOURCE)
    (folder.parent / "config.pbtxt").write_text(_CONFIG)
