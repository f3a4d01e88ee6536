"""The wording of errors: `_checks`, which every check stands on."""

import pytest
import torch

from anyfuse import _checks


def test_require_raises_its_message():
    _checks.require(True, "never said")
    with pytest.raises(ValueError, match=r"^k is 3; accepted: 4$"):
        _checks.require(False, "k is 3; accepted: 4")


def test_require_tensor_names_what_it_got_and_what_it_takes():
    _checks.require_tensor("x", torch.zeros(2), (torch.float32,))
    with pytest.raises(TypeError, match=r"^x is a list; accepted: a tensor of float32, bfloat16$"):
        _checks.require_tensor("x", [1.0], (torch.float32, torch.bfloat16))
    with pytest.raises(TypeError, match=r"^x has dtype int8; accepted: float32$"):
        _checks.require_tensor("x", torch.zeros(2, dtype=torch.int8), (torch.float32,))


@pytest.mark.parametrize(
    "value, accepted",
    [("nd", ("nd", "nz")), (True, (True, False, "row")), (8, (8, 32)), (None, (None, "int4")), (1, (True, 1))],
)
def test_one_of_returns_the_value(value, accepted):
    assert _checks.one_of("option", value, accepted) is value


@pytest.mark.parametrize(
    "value, accepted, said",
    [
        ("zn", ("nd", "nz"), "option is 'zn'; accepted: 'nd', 'nz'"),
        (1, (True, False), "option is 1; accepted: True, False"),
        (True, (8, 1), "option is True; accepted: 8, 1"),
        (["nd"], ("nd",), "option is ['nd']; accepted: 'nd'"),
        (torch.ones(3), ("nd",), f"option is {torch.ones(3)!r}; accepted: 'nd'"),
    ],
)
def test_one_of_refuses_every_other_value(value, accepted, said):
    with pytest.raises(ValueError) as caught:
        _checks.one_of("option", value, accepted)
    assert str(caught.value) == said


def test_names_and_kinds():
    assert _checks.names([torch.float8_e4m3fn, "int4"]) == "float8_e4m3fn, int4"
    assert _checks.kind(torch.zeros(1, dtype=torch.int64)) == "a tensor of int64"
    assert _checks.kind(None) == "a NoneType"
