"""Every subcommand: its help and examples, its JSON, its refusals; and what surrounds them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import FILES, invoke

import anyfuse
import anyfuse_cli
from anyfuse_cli.app import app

NAMES = ("acl-config", "bench", "case compare", "case gen", "case options", "case run", "demo", "eval", "info",
         "quantize", "run", "verify")  # fmt: skip

#: A call of each that prints JSON, in a folder that holds a case in DIR. Those missing here train or load models for
#: long, and are called with --json in test_demo.py and test_quantize_hf.py; `run` gives its output to the script.
JSON_CALLS = {
    "acl-config": "acl-config --json",
    "bench": "bench --no-run --history results --report page.html --json",
    "case compare": "case compare DIR --json",
    "case gen": "case gen lazy_adam NEW --json",
    "case options": "case options lazy_adam --json",
    "case run": "case run DIR --json",
    "info": "info --json",
    "verify": "verify lazy_adam --samples 1 --target base --threads 1 --json",
}
#: Calls that name a file which is not there.
MISSING = {
    "bench": "bench --no-run --report page.html --history nowhere",
    "case compare": "case compare nowhere",
    "case run": "case run nowhere",
    "eval": "eval nowhere text.txt",
    "quantize": "quantize nowhere OUT",
    "run": "run nowhere.py",
}
#: How examples begin that take a second or two; the others train, time, compile or load a model.
CHEAP = (
    "anyfuse info", "anyfuse case", "anyfuse --debug case", "anyfuse acl-config", "anyfuse verify lazy_adam",
    "anyfuse bench --no-run",
)  # fmt: skip


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name, command


COMMANDS = dict(commands(typer.main.get_command(app)))
GROUPS = ("", "case")


def help_of(name: str) -> str:
    run = invoke(*name.split(), "--help")
    assert run.exit_code == 0
    return str(run.stdout)


def examples(text: str) -> list[str]:
    return [line.strip().removeprefix("$ ") for line in text.splitlines() if line.strip().startswith("$ ")]


EVERY = [(name, example) for name in (*NAMES, *GROUPS) for example in examples(help_of(name))]


def cheap(example: str) -> bool:
    return example.startswith(CHEAP) and "--preset" not in example  # whose table has two million rows


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with a case that has been run in DIR and results files in `results`."""
    monkeypatch.chdir(tmp_path)
    assert invoke("case", "gen", "lazy_adam", "DIR").exit_code == 0 and invoke("case", "run", "DIR").exit_code == 0
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / FILES[0].name).write_bytes(FILES[0].read_bytes())
    return tmp_path


def test_no_command_is_forgotten() -> None:
    assert tuple(sorted(COMMANDS)) == NAMES
    assert set(JSON_CALLS) | {"demo", "eval", "quantize", "run"} == set(NAMES)


STARTS = ("anyfuse", "cat", "cc", "cmake", "export", "source")


@pytest.mark.parametrize("name", [*NAMES, *GROUPS])
def test_help_has_examples_and_exit_statuses(name: str) -> None:
    text = help_of(name)
    found = examples(text)
    assert found and all(example.split()[0] in STARTS for example in found)
    assert any(f"anyfuse {name}".strip() in example for example in found)
    assert max(map(len, found)) <= 76  # so that none is broken in a terminal of 80 columns
    assert "Exit status: 0" in text or "Exit status: the script's" in text


@pytest.mark.parametrize("name", NAMES)
def test_options_are_explained(name: str) -> None:
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "help", ""), parameter.name
    takes_json = any("--json" in parameter.opts for parameter in COMMANDS[name].params)
    assert takes_json == (name != "run")


@pytest.mark.parametrize("name", JSON_CALLS)
def test_json_is_all_that_is_printed(name: str, workplace: Path) -> None:
    run = invoke(*JSON_CALLS[name].split())
    assert run.exit_code == 0, run.output
    assert isinstance(json.loads(run.stdout), dict)
    assert run.stderr == ""


@pytest.mark.parametrize(("name", "example"), [item for item in EVERY if cheap(item[1])])
def test_examples_work(name: str, example: str, workplace: Path) -> None:
    words = shlex.split(example)[1:]
    if words[:2] == ["case", "gen"]:
        words.append("--overwrite")
    run = invoke(*words)
    assert run.exit_code == 0, run.output + str(run.exception)


def test_enough_examples_are_tried() -> None:
    assert {name for name, example in EVERY if cheap(example)} >= set(NAMES) - {
        "bench",
        "demo",
        "eval",
        "quantize",
        "run",
    }


@pytest.mark.parametrize(("name", "example"), [item for item in EVERY if not cheap(item[1])])
def test_dear_examples_are_well_formed(name: str, example: str) -> None:
    """Their words are read, up to where the command would begin."""
    words = shlex.split(example)
    if words[0] != "anyfuse" or words[1].startswith("--"):
        return
    command = COMMANDS[" ".join(words[1:3])] if words[1] in GROUPS else COMMANDS[words[1]]
    words = words[3:] if words[1] in GROUPS else words[2:]
    if command.name == "run":
        words = [word if word.startswith("--") or not word.endswith(".py") else __file__ for word in words]
    with command.make_context("anyfuse", words):
        pass


@pytest.mark.parametrize("name", NAMES)
def test_unknown_arguments_are_refused(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    if name in ("run", "case gen"):  # what they do not know is the script's, or the name of a size
        words = ["run", "--nonsense"] if name == "run" else ["case", "gen", "lazy_adam", "DIR", "--nonsense"]
    else:
        words = [*name.split(), "--nonsense"]
    assert main(words) == 2
    assert "nonsense" in capfd.readouterr().err


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_file_is_one_line(name: str, workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(MISSING[name].split()) == 2
    said = capfd.readouterr()
    assert said.out == "" and "nowhere" in said.err and "Traceback" not in said.err
    if name != "run":  # whose script is looked for where arguments are read, in that part's own form
        assert said.err.startswith("anyfuse: ") and said.err.count("\n") == 1


def main(words: list[str]) -> int:
    """Calls the command as the shell does; its exit status."""
    before, sys.argv = sys.argv, ["anyfuse", *words]
    try:
        anyfuse_cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


def test_errors_have_tracebacks_when_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "nothing"]) == 2
    with pytest.raises(ValueError, match="'nothing' is unknown"):
        main(["--debug", "bench", "nothing"])
    assert main(["bench", "nothing"]) == 2  # not asked for any more


def test_a_fault_of_ours_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise KeyError("two\nlines")

    monkeypatch.setattr("anyfuse._machine.machine", broken)
    assert main(["info"]) == 2
    said = capfd.readouterr().err
    assert said.startswith("anyfuse: unexpected KeyError") and "--debug" in said and said.count("\n") == 1


def test_errors_of_the_system_name_the_file(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (workplace / "DIR" / "manifest.json").unlink()
    (workplace / "DIR" / "manifest.json").mkdir()
    assert main(["case", "run", "DIR"]) == 2
    assert "manifest.json" in capfd.readouterr().err


def test_info_has_no_words_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"targets_available": ["base", "avx2"], "cuda": None, "cores": 2}
    monkeypatch.setattr("anyfuse._machine.machine", lambda: facts)
    lines = [line.split() for line in invoke("info").stdout.splitlines()]
    assert lines == [["targets", "available", "base,", "avx2"], ["cuda", "none"], ["cores", "2"]]


def test_the_version() -> None:
    assert invoke("--version").stdout == f"anyfuse {anyfuse.__version__}\n"


def test_commands_write_where_they_are_told_to(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is cheap, with a home and a folder of its own, in which nothing else appears."""
    monkeypatch.setenv("HOME", str(workplace / "home"))
    (workplace / "home").mkdir()
    before = {path for path in workplace.rglob("*") if path.is_file()}
    for words in ("info", "acl-config", "case options lazy_adam", "case run DIR", "case compare DIR",
                  "verify lazy_adam --samples 1 --target base --threads 1 --report page.html",
                  "bench --no-run --history results --report bench.html"):  # fmt: skip
        assert invoke(*words.split()).exit_code == 0, words
    after = {path for path in workplace.rglob("*") if path.is_file()}
    assert after - before == {workplace / "page.html", workplace / "bench.html"}


# ---- completion, in a shell ----

PROGRAM = "import sys; sys.argv[0] = 'anyfuse'; from anyfuse_cli import main; main()"


def shell(script: str, home: Path) -> str:
    """Runs bash with a program `anyfuse` on its path."""
    program = home / "bin" / "anyfuse"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!{sys.executable}\n{PROGRAM}\n")
    program.chmod(0o755)
    source = Path(anyfuse.__file__).parent.parent
    environment = {**os.environ, "HOME": str(home), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH"))))
    run = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_completion_in_bash(tmp_path: Path) -> None:
    """Installed as the user does it, then asked as bash asks on Tab."""
    said = shell("anyfuse --install-completion; true", tmp_path)
    assert "bash completion installed" in said
    installed = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "bin"]
    assert (tmp_path / ".bashrc") in installed
    script = """
        source ~/.bash_completions/anyfuse.sh
        ask() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _anyfuse_completion "$1"; echo "${COMPREPLY[@]}"
        }
        ask anyfuse ver
        ask anyfuse verify lazy
        ask anyfuse case gen apply_f
        ask anyfuse verify --soc Kirin
    """
    lines = [sorted(line.split()) for line in shell(script, tmp_path).splitlines()]
    assert lines == [["verify"], ["lazy_adam"], ["apply_fused_ema_adamw"], ["Kirin9030", "KirinX90"]]


def test_completion_is_shown(tmp_path: Path) -> None:
    assert "complete -o default -F _anyfuse_completion anyfuse" in shell("anyfuse --show-completion; true", tmp_path)


# ---- odd terminals, odd names ----


def run_in_shell(script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash in which `$anyfuse` is the command."""
    command = f"{sys.executable} -m anyfuse"
    everything = {**os.environ, "anyfuse": command, "PYTHONPATH": str(Path(anyfuse.__file__).parent.parent)}
    return subprocess.run(["bash", "-c", script], capture_output=True, env={**everything, **environment}, check=False)


VERIFY = "$anyfuse verify lazy_adam --samples 1 --target base --threads 1"


def test_a_narrow_terminal_breaks_lines_and_cuts_no_figure(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in ("20", "5"):
        monkeypatch.setenv("COLUMNS", width)
        for words in ("info", "info --soc Ascend950", "case compare DIR", "case options lazy_adam",
                      "verify lazy_adam --samples 1 --target base --threads 1"):  # fmt: skip
            said = invoke(*words.split()).stdout
            assert "…" not in said, words
            if words.startswith("verify"):
                assert "lazy_adam" in said and "differ" in said and "equal" in said


def test_a_sign_that_the_terminal_lacks_loses_no_report() -> None:
    said = run_in_shell(VERIFY, PYTHONIOENCODING="ascii")
    assert said.returncode == 0 and b"lazy_adam" in said.stdout and b"native base ?1" in said.stdout


def test_a_closed_pipe_is_no_traceback() -> None:
    for words in ("info", "info --json", "--help"):
        said = run_in_shell(f"$anyfuse {words} | head -1")
        assert said.returncode == 0 and said.stderr == b"", (words, said.stderr)


def test_a_full_disk_is_one_line() -> None:
    for words in ("info", "info --json"):
        said = run_in_shell(f"$anyfuse {words} > /dev/full")
        assert said.returncode == 2 and said.stderr.count(b"\n") == 1 and b"No space left" in said.stderr


def test_names_of_folders_are_no_markup(workplace: Path) -> None:
    for name in ("[/bold]x", "ü nï ö", 'a"b\\n', "--x"):
        assert invoke("case", "gen", "lazy_adam", "--", name).exit_code == 0
        said = invoke("case", "run", "--", name)
        assert said.exit_code == 0 and invoke("case", "compare", "--", name).exit_code == 0, name
