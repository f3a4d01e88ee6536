"""Writes `schemas.inc` from the records of the operators: `python schemas.py <folder of src/anyfuse/ops> <file>`.

The class `Call` in each operator's file is the only list of its arguments. From its annotations, read without importing
anything, come the operator's schema for torch, that of its overload for one tensor where it takes lists, and the place
of each argument, by name, for the C++ that reads them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: What an annotation is in a schema.
TYPES = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    "list[Tensor]": "Tensor[]",
    "list[Tensor | None]": "Tensor?[]",
    "list[int]": "SymInt[]",
    "list[int] | None": "int[]?",
    "float": "float",
    "int": "int",
    "int | None": "int?",
    "bool": "bool",
    "torch.dtype | None": "ScalarType?",
}

#: A schema's type: how an argument of it is freed, as `Kind` in door.h.
KINDS = {
    "Tensor": "kTensor",
    "Tensor?": "kOptionalTensor",
    "Tensor[]": "kTensors",
    "Tensor?[]": "kOptionalTensors",
    "SymInt[]": "kNumbers",
    "int[]?": "kOptionalNumbers",
    "int?": "kOptionalNumber",
    "ScalarType?": "kOptionalNumber",
    "str": "kChoice",
}


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    updated: bool  # in place
    perhaps: bool  # a list that is empty where the argument is absent
    choices: tuple[str, ...]

    @property
    def of_one(self) -> str:
        """The type in the overload for one tensor."""
        if not self.type.startswith("Tensor") or not self.type.endswith("[]"):
            return self.type
        one = self.type.removesuffix("[]")
        return "Tensor?" if self.perhaps else one


@dataclass(frozen=True)
class Record:
    """One operator: the name that torch knows it by, its arguments and what it returns."""

    stem: str
    fields: tuple[Field, ...]
    returns: str

    @property
    def name(self) -> str:
        return self.stem + ("_" if any(field.updated for field in self.fields) else "")

    @property
    def takes_lists(self) -> bool:
        return any(field.of_one != field.type for field in self.fields)

    def schema(self, form: str = "") -> str:
        """That of the operator; of "one" tensor; or "general": with choices as their numbers."""
        letters = iter("abcdefgh")
        arguments = []
        for field in self.fields:
            kind = field.of_one if form == "one" else field.type
            if form == "general" and kind == "str":
                kind = "int"
            if field.updated:
                kind = kind.replace("Tensor", f"Tensor({next(letters)}!)", 1)
            arguments.append(f"{kind} {field.name}")
        name = {"": self.name, "one": f"{self.name}.one", "general": f"_general_{self.name}"}[form]
        return f"{name}({', '.join(arguments)}) -> {self.returns}"


def _unwrapped(annotation: ast.expr, name: str) -> tuple[ast.expr, bool]:
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name) and annotation.value.id == name:
        return annotation.slice, True
    return annotation, False


def _choices(module: ast.Module) -> dict[str, tuple[str, ...]]:
    """The module's names for `Literal[...]` of strings."""
    found = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            inner, is_literal = _unwrapped(statement.value, "Literal")
            if is_literal:
                found[statement.targets[0].id] = tuple(ast.literal_eval(inner))
    return found


def _fields(record: ast.ClassDef, choices: dict[str, tuple[str, ...]]) -> Iterator[Field]:
    for statement in record.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        annotation, perhaps = _unwrapped(statement.annotation, "Perhaps")
        annotation, updated = _unwrapped(annotation, "Updated")
        text = ast.unparse(annotation)
        mine = choices.get(text, ())
        yield Field(statement.target.id, "str" if mine else TYPES[text], updated, perhaps, mine)


def records(folder: Path) -> Iterator[Record]:
    shared = _choices(ast.parse((folder / "_record.py").read_text(encoding="utf-8")))
    for path in sorted(folder.glob("[a-z]*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        classes = {statement.name: statement for statement in module.body if isinstance(statement, ast.ClassDef)}
        returns = [
            ast.literal_eval(statement.value)
            for statement in module.body
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "RETURNS"
        ]
        yield Record(path.stem, tuple(_fields(classes["Call"], {**shared, **_choices(module)})), returns[0])


def _source(record: Record) -> str:
    lines = [f"namespace {record.stem} {{", "enum Argument : int {"]
    lines += [f"  {field.name}," for field in record.fields]
    lines += ["};"]
    for field in record.fields:
        if field.choices:
            names = ", ".join(f'"{choice}"' for choice in field.choices)
            lines.append(f"inline constexpr const char *k_{field.name}[] = {{{names}, nullptr}};")
    for variable, form in (("kFields", ""), ("kFieldsOfOne", "one")):
        if form and not record.takes_lists:
            continue
        lines.append(f"inline constexpr Field {variable}[] = {{")
        for field in record.fields:
            kind = KINDS.get(field.of_one if form else field.type, "kPlain")
            lines.append(f"    {{{kind}, {f'k_{field.name}' if field.choices else 'nullptr'}}},")
        lines.append("};")
    one = ("kFieldsOfOne", f'"{record.schema("one")}"') if record.takes_lists else ("nullptr", "nullptr")
    lines += [
        f'inline constexpr Schema kSchema = {{"{record.name}", "{record.schema()}",',
        f'    {one[1]}, "{record.schema("general")}",',
        f"    kFields, {one[0]}, {len(record.fields)}, {record.returns.count('Tensor')}}};",
        f"}}  // namespace {record.stem}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    text = "// Written by schemas.py.\n\n" + "\n\n".join(map(_source, records(Path(sys.argv[1])))) + "\n"
    Path(sys.argv[2]).write_text(text, encoding="utf-8")
