"""Small modules of torch, from which ``torch_models`` makes models."""

# mypy: allow-subclassing-any, allow-untyped-calls
# no postponed annotations: TorchScript reads those of classes as they are

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn


@contextmanager
def quiet() -> Iterator[None]:
    """TorchScript warns that it is deprecated, ``torch.export`` about much else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class AddOne(nn.Module):
    """``x + 1``."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Linear(nn.Module):
    """``x`` [n, 4] -> [n, 3], with fixed weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        with torch.no_grad():
            self.layer.weight.copy_(torch.arange(12).reshape(3, 4) / 10)
            self.layer.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result


class AddSub(nn.Module):
    """A tuple: the sum and the difference."""

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return left + right, left - right


class Named(nn.Module):
    """A dict: ``double`` and ``sum``."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"double": x * 2, "sum": x.sum(1)}


class Numbers(nn.Module):
    """Takes Python numbers beside a tensor, one of them with a default."""

    def forward(self, x: Tensor, times: int, plus: float = 0.5) -> Tensor:
        return x * times + plus


class TakesDict(nn.Module):
    """One argument, a dict of tensors."""

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        return tensors["left"] - tensors["right"]


class TakesList(nn.Module):
    """One argument, a list of tensors."""

    def forward(self, tensors: list[Tensor]) -> Tensor:
        return tensors[0] - tensors[1]


class WritesInput(nn.Module):
    """Adds to its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2


class Counter(nn.Module):
    """Counts its calls: ``x`` plus the number of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x + self.calls

    @torch.jit.export
    def reset_calls(self) -> None:
        """Begin again."""
        self.calls = 0

    @torch.jit.export
    def twice(self, x: Tensor) -> Tensor:
        """A method of its own, without state."""
        return x * 2


class CountsInBuffer(nn.Module):
    """Counts its calls in a buffer, in place."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x + self.calls


class GivesBuffer(nn.Module):
    """Counts its calls in a buffer, and gives the buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.calls


class Nested(nn.Module):
    """Arguments in a dict, constants, and answers in a dict and a tuple."""

    def forward(self, first: Tensor, rest: dict[str, Tensor], nothing: None, plus: int) -> dict[str, Any]:
        return {"one": first + plus, "two": (rest["a"] * 1, rest["b"] * 1)}


class MixesRows(nn.Module):
    """Its rows depend on each other, which its shapes do not show."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Complains(nn.Module):
    """Raises for negative numbers."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x < 0).any()):
            raise ValueError("negative numbers have no root")
        return x.sqrt()


class Fails(nn.Module):
    """Fails for a reason of its own."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() > 0:
            raise RuntimeError("the model is out of order")
        return x


class Allocates(nn.Module):
    """As many zeros as it is asked for."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros([int(x.item())])


class Image(nn.Module):
    """A convolution over [n, 3, h, w]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.layers(image)
        return result


class Table(nn.Module):
    """Looks numbers up in a table of 4."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(4) * 10.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x]


class WritesFile(nn.Module):
    """TorchScript that writes a file when it runs."""

    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "planted")
        return x


class Step(nn.Module):
    """What a step of ``WritesFileInside`` looks like."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[empty-body]
        pass


with quiet():
    torch.jit.interface(Step)


class WritesFileInside(nn.Module):
    """TorchScript that writes a file in a part that it calls through an interface."""

    step: Step

    def __init__(self) -> None:
        super().__init__()
        self.step = cast(Step, WritesFile())

    def forward(self, x: Tensor) -> Tensor:
        return self.step.forward(x)


class ReadsFile(nn.Module):
    """TorchScript that maps a file when it runs."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_file("planted", True, 10) + x


class WritesFileWhenLoaded(nn.Module):
    """TorchScript that writes a file already while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 1

    @torch.jit.export
    def __getstate__(self) -> tuple[int, bool]:
        return self.size, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        torch.save(state[0], "planted")
        self.size = state[0]
        self.training = state[1]

    def forward(self, x: Tensor) -> Tensor:
        return x + self.size
