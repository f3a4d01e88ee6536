"""What the library and the command do without: the extra `cli` the one, torch the other until it works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import anyfuse
from anyfuse._opspec import REGISTRY
from anyfuse._products import PRODUCTS
from anyfuse_cli import extra, package

ROOT = Path(__file__).parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

#: An import hook that refuses packages as if they were not installed.
REFUSE = """
import sys
refused = set({!r})
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def python(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(anyfuse.__file__).parent.parent), *filter(None, sys.path)])
    given = {**os.environ, **environment, "PYTHONPATH": paths}
    return subprocess.run([sys.executable, "-c", code, *words], env=given, capture_output=True, text=True)


def command(*words: str, refused: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Calls the command, and says on stderr's last line whether torch was imported."""
    run = "import atexit; atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
    start = f"sys.argv = ['anyfuse', *{list(words)!r}]\nfrom anyfuse_cli import main\nmain()"
    return python(REFUSE.format(list(refused)) + run + start, **environment)


def test_the_library_works_without_the_extra() -> None:
    code = """
import torch, anyfuse
from anyfuse import aclnn, compat, formats, fusion, models, nn, npu, optim
layer = nn.QuantLinear.from_float(torch.nn.Linear(32, 16))
assert layer(torch.ones(2, 32)).shape == (2, 16)
anyfuse.add_rms_norm_dynamic_quant(torch.ones(2, 8), torch.ones(2, 8), torch.ones(8))
parameter = torch.nn.Parameter(torch.ones(4096))
parameter.grad = torch.ones(4096)
for kind in (optim.AdamW8bit, optim.EMAAdamW, optim.LazyAdam):
    kind([parameter], lr=0.1).step()
from anyfuse.verify import matrix
assert matrix.verify(matrix.operators(["lazy_adam"]), matrix.ways([], ["base"], [1]), samples=1).passed
import anyfuse.bench.measure, anyfuse.demo.study, anyfuse.models.command, anyfuse.bench.results
assert not refused & {name.partition(".")[0] for name in sys.modules}
"""
    run = python(REFUSE.format(extra.NAMES) + code)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["typer", "rich", "jinja2", "markupsafe"])
def test_the_command_says_what_to_install(name: str, tmp_path: Path) -> None:
    words = ["verify", "lazy_adam", "--samples", "1", "--target", "base", "--report", str(tmp_path / "page.html")]
    run = command(*words, refused=(name,))
    assert run.returncode == 2 and run.stdout == ""
    lines = run.stderr.splitlines()
    assert lines[:-1] == [f"anyfuse: {name} is missing: pip install 'anyfuse[cli]'"]
    assert not list(tmp_path.iterdir())


def test_python_m_says_so_too() -> None:
    run = python(REFUSE.format(["typer"]) + "import runpy; runpy.run_module('anyfuse', run_name='__main__')")
    assert run.returncode == 2 and run.stderr == "anyfuse: typer is missing: pip install 'anyfuse[cli]'\n"


def test_a_fault_of_ours_is_not_a_missing_package() -> None:
    assert extra.lacking(ModuleNotFoundError("No module named 'anyfuse.gone'", name="anyfuse.gone")) is None
    assert extra.lacking(ImportError("cannot import name 'x' from 'rich'", name="rich")) is None


def asked(words: str) -> dict[str, str]:
    """What the shell sets when it asks for completions of a line that ends in a word begun."""
    return {"_ANYFUSE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (("--help",), {}, "quantize"),
        (("--version",), {}, f"anyfuse {anyfuse.__version__}"),
        (("acl-config", "--cflags"), {}, "-I"),
        (("acl-config", "--json"), {}, '"libs"'),
        *(((*name.split(), "--help"), {}, "Exit status") for name in (
            "verify", "bench", "case", "case gen", "demo", "quantize", "eval", "run", "info", "acl-config"
        )),
        (("--show-completion", "bash"), {}, "_anyfuse_completion"),
        ((), asked("anyfuse ver"), "verify"),
        ((), asked("anyfuse verify --sam"), "--samples"),
        ((), asked("anyfuse verify lazy"), "lazy_adam"),
        ((), asked("anyfuse verify --target "), "base"),
        ((), asked("anyfuse case run DIR --backend nat"), "native"),
        ((), asked("anyfuse verify --soc Kirin"), "Kirin9030"),
    ],
)  # fmt: skip
def test_what_needs_no_operator_does_not_wait_for_torch(
    words: tuple[str, ...], environment: dict[str, str], said: str
) -> None:
    run = command(*words, **environment)
    assert said in run.stdout, run.stderr
    assert run.returncode == 0 and run.stderr.splitlines() == ["False"]


def test_names_are_offered_as_the_registry_has_them() -> None:
    from anyfuse_cli import complete

    assert complete.operators("") == sorted(REGISTRY) and complete.operators("lazy") == ["lazy_adam"]
    assert complete.products("") == list(PRODUCTS)


def test_the_package_is_found_as_python_finds_it() -> None:
    assert package.folder() == Path(anyfuse.__file__).parent
    assert package.module("_core").__name__ == "anyfuse._core"  # it is there: no second one is loaded


def test_defaults_are_those_of_the_work() -> None:
    """They stand in the command's own words, since their modules need torch."""
    import inspect

    from anyfuse.demo import study
    from anyfuse.models import evaluate
    from anyfuse.verify import compare
    from anyfuse_cli import case, demo, models

    def default(function: object, name: str) -> object:
        return inspect.signature(function).parameters[name].default  # type: ignore[arg-type]

    assert default(demo.demo, "steps") == study.STEPS
    assert default(models.eval_, "tokens") == evaluate.WINDOW
    assert default(case.compare, "count_loss") == compare.COUNT_LOSS


def test_the_extra_names_what_the_command_imports() -> None:
    declared = re.search(r"^cli = \[(.*?)\]", PYPROJECT, re.MULTILINE)
    assert declared is not None
    assert set(re.findall(r'"(\w+)', declared.group(1))) <= set(extra.NAMES)
    dependencies = re.search(r"^dependencies = \[(.*?)\]", PYPROJECT, re.MULTILINE)
    assert dependencies is not None and set(re.findall(r'"(\w+)', dependencies.group(1))) == {"torch", "numpy"}
