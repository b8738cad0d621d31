"""What a configuration declares, against what the artifact says: narrowed, or refused with the mend."""

from __future__ import annotations

import pytest

from backends.declared import check_complete, narrow
from backends.errors import LoadFailed
from backends.spec import TensorSpec


def tensor(name: str, *shape: int, datatype: str = "FP32", optional: bool = False) -> TensorSpec:
    return TensorSpec(name, datatype, shape, optional)


def test_without_a_declaration_the_artifact_is_believed() -> None:
    found = [tensor("b", -1, 4), tensor("a", 2)]
    assert narrow("input", [], found) == tuple(found)


def test_declared_tensors_are_chosen_in_their_order() -> None:
    found = [tensor("a", 1), tensor("b", 2), tensor("c", 3)]
    assert narrow("output", [found[2], found[0]], found) == (found[2], found[0])


@pytest.mark.parametrize(
    ("declared", "model", "both"),
    [
        ((-1, 4), (-1, 4), (-1, 4)),
        ((-1, 4), (-1, -1), (-1, 4)),
        ((-1, -1), (-1, 4), (-1, 4)),
        ((2, -1), (-1, 4), (2, 4)),
        ((0,), (-1,), (0,)),
        ((), (), ()),
    ],
)
def test_the_narrower_size_holds_in_every_dimension(
    declared: tuple[int, ...], model: tuple[int, ...], both: tuple[int, ...]
) -> None:
    assert narrow("input", [tensor("x", *declared)], [tensor("x", *model)]) == (tensor("x", *both),)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (tensor("z", -1), "the model has no input 'z'; it has 'x', 'y': declare it under a name that the model has"),
        (tensor("x", -1, 4, datatype="INT64"), "'x' is declared as INT64, in the model it is FP32: declare it as FP32"),
        (tensor("x", -1, 5), "'x' is declared with shape [-1, 5] (batch dimension included), in the model it has"),
        (tensor("x", 4), "[4] (batch dimension included), in the model it has [-1, 4]: declare the model's sizes"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused_with_both_sides_and_the_mend(declared: TensorSpec, words: str) -> None:
    with pytest.raises(LoadFailed) as refused:
        narrow("input", [declared], [tensor("x", -1, 4), tensor("y", 1)])
    assert words in str(refused.value)


def test_a_model_without_outputs_says_so() -> None:
    with pytest.raises(LoadFailed, match="no output 'y'; it has none"):
        narrow("output", [tensor("y", 1)], [])


def test_an_open_shape_is_the_declared_one() -> None:
    (narrowed,) = narrow("input", [tensor("x", -1, 2, 3)], [tensor("x", -1)], unranked={"x"})
    assert narrowed == tensor("x", -1, 2, 3)


def test_an_open_shape_has_to_be_declared_for_an_input_and_may_stay_open_for_an_output() -> None:
    with pytest.raises(LoadFailed, match="input 'x' has no shape in the model: declare"):
        narrow("input", [], [tensor("x")], unranked={"x"})
    assert narrow("output", [], [tensor("y")], unranked={"y"}) == (tensor("y", -1),)


def test_a_declared_name_may_stand_for_another_of_the_artifact() -> None:
    (narrowed,) = narrow("output", [tensor("sum", -1)], [tensor("OUTPUT__0", 8)], own_names={"sum": "OUTPUT__0"})
    assert narrowed == tensor("sum", 8)


@pytest.mark.parametrize(("declared", "model"), [(True, False), (False, True)])
def test_whether_an_input_is_optional_is_the_artifacts_word(declared: bool, model: bool) -> None:
    (narrowed,) = narrow("input", [tensor("x", 1, optional=declared)], [tensor("x", 1, optional=model)])
    assert narrowed.optional is model


def test_what_the_model_requires_has_to_be_offered() -> None:
    check_complete(["a", "b"], ["b", "c", "a"])
    check_complete([], [])
    with pytest.raises(LoadFailed, match=r"needs input\(s\) 'b', 'c', which the declared inputs lack: declare every"):
        check_complete(["a", "b", "c"], ["a"])
