"""Configuration: what is read, from where, what wins, and how mistakes are told."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from precision_lint import config
from precision_lint.api import Confidence, Severity
from precision_lint.config import ConfigError, Overrides, Resolver, Settings
from tests import standins

ENGINE = {"MP001", "MP002", "MP003"}
RULES = {"MP911", "MP912", "MP921", "MP922"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    standins.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def pyproject(folder: Path, text: str) -> Path:
    return write(folder / "pyproject.toml", f"[tool.precision-lint]\n{text}\n")


def settings(text: str) -> Settings:
    here = Path.cwd()
    pyproject(here, text)
    return Resolver()(here)


def test_default_is_everything() -> None:
    found = Resolver()(Path.cwd())
    assert found.codes == ENGINE | RULES | {"MP004", "MP005"}
    assert (found.confidence, found.fail_on) == (Confidence.LIKELY, Severity.WARNING)
    assert found == Settings()


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ('select = ["MP911"]', {"MP911"}),
        ('select = ["bad-word", "MP92"]', {"MP911", "MP921", "MP922"}),
        ('select = ["ALL"]', RULES | {"MP004", "MP005"}),
        ("select = []", set()),
        ('select = []\nextend-select = ["MP912"]', {"MP912"}),
        ('ignore = ["MP91"]', {"MP921", "MP922", "MP004", "MP005"}),
        ('select = ["MP911"]\nignore = ["MP9"]', {"MP911"}),  # the longer prefix wins
        ('select = ["MP9"]\nignore = ["MP911", "meh-word"]', {"MP912", "MP922"}),
        ('select = ["MP911"]\nignore = ["bad-word"]', set()),  # at equal length ignore wins
    ],
)
def test_selectors(text: str, codes: set[str]) -> None:
    assert settings(text).codes == ENGINE | codes


def test_engine_failures_stay_unless_ignored() -> None:
    assert settings('ignore = ["MP002", "MP003"]').codes & ENGINE == {"MP001", "MP003"}


@pytest.mark.parametrize(
    ("overrides", "codes"),
    [
        (Overrides(), {"MP912"}),
        (Overrides(select=("MP921",)), {"MP921"}),  # the file's select and ignore are replaced
        (Overrides(select=("MP9",)), RULES),
        (Overrides(extend_select=("MP921",)), {"MP912", "MP921"}),
        (Overrides(ignore=("MP9",)), set()),  # the outer layer wins whatever its length
        (Overrides(select=("MP9",), ignore=("odd-word",)), RULES - {"MP912"}),
    ],
)
def test_command_line_wins(here: Path, overrides: Overrides, codes: set[str]) -> None:
    pyproject(here, 'select = ["MP911", "MP912"]\nignore = ["MP911"]')
    assert Resolver(overrides)(here).codes == ENGINE | codes


def test_every_key_is_read() -> None:
    found = settings(
        'confidence = "certain"\nfail-on = "info"\nexclude = ["a"]\nextend-exclude = ["b/*.py"]\n'
        "force-exclude = true\nrespect-gitignore = false\nunsafe-fixes = true\n"
        'output-format = "json"\njobs = 3\n[tool.precision-lint.per-file-ignores]\n"t" = ["MP9"]'
    )
    here = Path.cwd()
    assert (found.confidence, found.fail_on) == (Confidence.CERTAIN, Severity.INFO)
    assert [spec.globs for spec in found.exclusions] == [("a",), ("b/*.py",)]
    assert [spec.base for spec in found.exclusions] == [here, here]
    assert (found.force_exclude, found.respect_gitignore, found.unsafe_fixes) == (True, False, True)
    assert (found.output_format, found.jobs) == ("json", 3)
    assert found.codes_for(here / "t" / "x.py") == ENGINE | {"MP004", "MP005"}


def test_overrides_replace_each_value(here: Path) -> None:
    pyproject(here, 'confidence = "certain"\nexclude = ["a"]\nextend-exclude = ["b"]\njobs = 3')
    overrides = Overrides(
        confidence=Confidence.POSSIBLE, exclude=("c",), extend_exclude=("d",), jobs=2
    )
    found = Resolver(overrides)(here)
    assert (found.confidence, found.jobs) == (Confidence.POSSIBLE, 2)
    assert [spec.globs for spec in found.exclusions] == [("c",), ("b",), ("d",)]


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("tests/**", "tests/deep/a.py", True),
        ("tests/**", "src/a.py", False),
        ("*_old.py", "src/x_old.py", True),
        ("/a.py", "src/a.py", False),
        ("!src/**", "src/a.py", False),  # everywhere but there
        ("!src/**", "other/a.py", True),
    ],
)
def test_per_file_ignores(here: Path, pattern: str, path: str, ignored: bool) -> None:
    found = settings(f'per-file-ignores = {{ "{pattern}" = ["MP911"] }}')
    assert ("MP911" not in found.codes_for(here / path)) is ignored
    assert "MP912" in found.codes_for(here / path)


def test_a_crash_is_never_ignored(here: Path) -> None:
    assert settings('per-file-ignores = { "*" = ["ALL"] }').codes_for(here / "a.py") == {"MP003"}
    assert settings('select = []\nignore = ["ALL", "MP003"]').codes == {"MP003"}


# where settings come from


def test_nearest_configuration_wins_and_nothing_is_merged(here: Path) -> None:
    pyproject(here, "jobs = 1\nunsafe-fixes = true")
    pyproject(here / "a" / "b", "jobs = 2")
    find = Resolver()
    assert find(here / "a").jobs == 1
    deep = find(here / "a" / "b" / "c" / "d")
    assert (deep.jobs, deep.unsafe_fixes) == (2, False)


def test_pyproject_without_the_table_does_not_count(here: Path) -> None:
    pyproject(here, "jobs = 1")
    write(here / "a" / "pyproject.toml", '[tool.ruff]\n# "precision-lint" is only mentioned\n')
    write(here / "a" / "b" / "pyproject.toml", "this is = no TOML and not ours to judge\n")
    assert Resolver()(here / "a" / "b").jobs == 1


def test_own_file_beats_pyproject_beside_it(here: Path) -> None:
    pyproject(here, "jobs = 1")
    write(here / ".precision-lint.toml", "jobs = 2\n")
    assert Resolver()(here).jobs == 2
    write(here / "precision-lint.toml", "jobs = 3\n")
    assert Resolver()(here).jobs == 3


def test_config_file_replaces_every_other(here: Path) -> None:
    pyproject(here / "a", "jobs = 1")
    file = write(here / "elsewhere" / "mine.toml", 'jobs = 7\nexclude = ["x"]\n')
    found = Resolver(config=file)(here / "a")
    assert found.jobs == 7
    assert found.exclude.base == here  # not beside the file


def test_the_cache_is_where_the_file_or_the_command_line_says(here: Path) -> None:
    pyproject(here / "a", 'cache-dir = "../kept"')
    found = Resolver()(here / "a" / "b")
    assert found.cache_dir is not None and found.cache_dir.resolve() == here / "kept"
    said = Resolver(Overrides(cache_dir=Path("mine")))(here / "a")
    assert (said.cache_dir, said.no_cache) == (here / "mine", False)
    assert Resolver(Overrides(cache_dir=here / "mine"))(here / "a").cache_dir == here / "mine"
    assert Resolver(Overrides(no_cache=True))(here / "a").no_cache
    assert (Resolver()(here).cache_dir, Resolver()(here).no_cache) == (None, False)


def test_a_file_extends_another(here: Path) -> None:
    write(
        here / "base.toml",
        'select = ["MP91"]\nconfidence = "possible"\nexclude = ["a/old", "gen"]\n'
        'extend-exclude = ["b"]\nbaseline = "held.json"\n'
        'per-file-ignores = { "*.pyi" = ["MP9"] }\n',
    )
    pyproject(
        here / "a",
        'extend = "../base.toml"\nextend-select = ["MP921"]\nignore = ["MP912"]\n'
        'extend-exclude = ["c"]',
    )
    found = Resolver()(here / "a")
    assert found.codes == ENGINE | {"MP911", "MP921"}
    assert found.confidence is Confidence.POSSIBLE
    assert found.baseline == here / "held.json"
    assert found.file == here / "a" / "pyproject.toml"
    assert found.codes_for(here / "a" / "m.pyi") == {"MP003"} | ENGINE

    def excluded(path: str) -> bool:
        return any(patterns.verdict(here / path) for patterns in found.exclusions)

    assert excluded("a/old/m.py"), "relative to the file that says so"
    assert excluded("a/x/gen/m.py") and excluded("a/b/m.py") and excluded("a/c/m.py")
    assert not excluded("a/build/m.py"), "exclude replaces the usual list"
    pyproject(here / "b", 'extend = "../base.toml"\nselect = ["MP922"]\nexclude = []')
    found = Resolver()(here / "b")
    assert found.codes == ENGINE | {"MP922"}
    assert not excluded("b2/gen/m.py")


def test_extended_files_may_lie_elsewhere(here: Path) -> None:
    write(here / "build" / "shared" / "base.toml", 'exclude = ["/gen"]\ncache-dir = "cache"\n')
    write(here / "build" / "common" / "plain.toml", 'confidence = "certain"\n')
    pyproject(here / "a", 'extend = "../build/shared/base.toml"')
    found = Resolver()(here / "a")
    assert found.exclude.verdict(here / "a" / "gen") is True
    assert found.exclude.verdict(here / "a" / "x" / "gen") is None
    assert found.cache_dir == here / "a" / "cache"
    pyproject(here / "build" / "b", 'extend = "../common/plain.toml"')
    found = Resolver()(here / "build" / "b")
    assert found.confidence is Confidence.CERTAIN
    assert found.exclude.verdict(here / "build" / "b" / "m.py") is None
    assert found.exclude.verdict(here / "build" / "b" / "build") is True


def test_extending_goes_on(here: Path) -> None:
    write(here / "one.toml", 'confidence = "certain"\nfail-on = "error"\nselect = ["MP911"]\n')
    write(here / "two.toml", 'extend = "one.toml"\nfail-on = "info"\n')
    found = settings('extend = "two.toml"\nextend-select = ["MP921"]')
    assert (found.confidence, found.fail_on) == (Confidence.CERTAIN, Severity.INFO)
    assert found.codes == ENGINE | {"MP911", "MP921"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extend = "none.toml"', "none.toml: cannot be read (No such file or directory)"),
        ('extend = "pyproject.toml"', '"extend" leads back to'),
        ('extend = "loop.toml"', '"extend" leads back to'),
        ('extend = "bad.toml"', 'unknown key "selct"; did you mean "select"?'),
        ('extend = "other/pyproject.toml"', "has no [tool.precision-lint]; add the table"),
        ("extend = 1", '"extend" is 1; write a path'),
    ],
)
def test_extending_mistakes_are_one_line(here: Path, text: str, message: str) -> None:
    write(here / "loop.toml", 'extend = "pyproject.toml"\n')
    write(here / "bad.toml", "selct = []\n")
    write(here / "other" / "pyproject.toml", "[project]\n")
    with pytest.raises(ConfigError) as caught:
        settings(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_isolated_ignores_configuration(here: Path) -> None:
    pyproject(here, "jobs = 1")
    found = Resolver(Overrides(unsafe_fixes=True), isolated=True)(here)
    assert (found.jobs, found.unsafe_fixes) == (None, True)


def test_settings_can_be_sent_to_a_process(here: Path) -> None:
    found = settings('extend-exclude = ["*.gen.py"]')
    assert found.extend_exclude[0].verdict(here / "x.gen.py")
    assert pickle.loads(pickle.dumps(found)) == found


# mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("selct = []", 'unknown key "selct"; did you mean "select"?'),
        ("fail_on = 1", 'unknown key "fail_on"; did you mean "fail-on"?'),
        ("zzz = 1", 'unknown key "zzz"; the keys are select, extend-select,'),
        ('select = "MP9"', "\"select\" is 'MP9'; write a list of strings"),
        ("select = [1]", '"select" is [1]; write a list of strings'),
        ('select = ["MP9111"]', 'unknown rule "MP9111"; did you mean "MP911"?'),
        ('ignore = ["bad-wrod"]', 'unknown rule "bad-wrod"; did you mean "bad-word"?'),
        ('extend-select = ["E501"]', 'unknown rule "E501"; `precision-lint rules` lists'),
        ('select = [""]', 'unknown rule ""; `precision-lint rules` lists'),
        (
            'confidence = "high"',
            '"confidence" is \'high\'; write one of "possible", "likely", "certain"',
        ),
        ("fail-on = []", '"fail-on" is []; write one of "info", "warning", "error"'),
        ("unsafe-fixes = 1", '"unsafe-fixes" is 1; write true or false'),
        ("jobs = 0", '"jobs" is 0; write a positive integer'),
        ("cache-dir = 3", '"cache-dir" is 3; write a path'),
        ('cache-dir = ""', "\"cache-dir\" is ''; write a path"),
        ("no-cache = true", 'unknown key "no-cache"; the keys are select'),
        ("jobs = true", '"jobs" is true; write a positive integer'),
        (
            'output-format = "xml"',
            '"output-format" is \'xml\'; write one of "text", "concise", "json"',
        ),
        ('output-format = ["xml"]', "\"output-format\" is ['xml']; write one of"),
        ("jobs = " + "[" * 5000, "is nested too deeply; correct the TOML"),
        ('per-file-ignores = ["a"]', "write a table from patterns to lists of strings"),
        ('per-file-ignores = { a = "MP9" }', "write a table from patterns to lists of strings"),
        ('per-file-ignores = { a = ["MP8"] }', 'unknown rule "MP8"; `precision-lint rules`'),
        ('exclude = ["!"]', "invalid pattern (Invalid git pattern: '!'); write the pattern as in"),
        ('exclude = ["[z-a]"]', "invalid pattern (bad character range z-a"),
    ],
)
def test_mistakes_are_one_line_with_what_to_do(here: Path, text: str, message: str) -> None:
    file = pyproject(here, text)
    with pytest.raises(ConfigError) as caught:
        Resolver()(here)
    row = "" if "nested too deeply" in message else ":2"
    assert str(caught.value).startswith(f"{file}{row}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "row"),
    [
        ("precision-lint.toml", "# jbs = 2\nselect = ['MP9']\n\njbs = 1\n", 4),
        ("precision-lint.toml", "select = [\n  'MP911',\n  'MP8',\n]\n", 3),
        ("precision-lint.toml", "jobs = 1\n[per-file-ignores]\n'a' = ['MP911']\nb = ['MP8']\n", 4),
        ("precision-lint.toml", "jobs = 1\n'extend' = 'none.toml'\n", None),
        ("precision-lint.toml", "\nextend = 'precision-lint.toml'\n", 2),
        ("pyproject.toml", "[a]\njobs = 0\n[tool.precision-lint]\njobs = 0\n", 4),
        ("pyproject.toml", "[a]\njobs = 0\n[tool]\nprecision-lint = { jobs = 0 }\n", 4),
        ("pyproject.toml", "[a]\njobs = 0\n[tool]\nprecision-lint.jobs = 0\n", 4),
        ("pyproject.toml", "[tool.precision-lint]\n[tool.precision-lint.jobs]\n", 2),
        ("pyproject.toml", "[a]\n\n[tool.precision_lint]\n", 3),
    ],
)
def test_mistakes_name_their_row(here: Path, name: str, text: str, row: int | None) -> None:
    (here / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        Resolver()(here)
    place = str(caught.value).partition(": ")[0]
    assert place == (f"{here / name}:{row}" if row else str(here / "none.toml"))


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"jobs = 1\nselect = [\n", ":3:1: invalid value; correct"),
        (b"jobs = 1\nselect == []\n", ":2:9: "),
        (b'jobs = 1\nselect = ["\xff"]\n', ":2:1: is not UTF-8"),
    ],
)
def test_toml_errors_have_a_place(here: Path, data: bytes, place: str) -> None:
    file = here / "precision-lint.toml"
    file.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        Resolver()(here)
    assert str(caught.value).startswith(f"{file}{place}")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.toml", None, "cannot be read (No such file or directory); check the path"),
        ("pyproject.toml", "[tool.ruff]\n", "has no [tool.precision-lint]; add the table"),
        ("pyproject.toml", "tool.precision-lint = 1\n", "is not a table; write [tool.prec"),
    ],
)
def test_config_option_mistakes(here: Path, name: str, text: str | None, message: str) -> None:
    file = here / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Resolver(config=file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "start"),
    [
        (Overrides(select=("MP7",)), '--select: unknown rule "MP7"'),
        (Overrides(ignore=("MP7",)), '--ignore: unknown rule "MP7"'),
        (Overrides(extend_select=("MP7",)), '--extend-select: unknown rule "MP7"'),
        (Overrides(exclude=("!",)), "--exclude: invalid pattern"),
        (Overrides(extend_exclude=("!",)), "--extend-exclude: invalid pattern"),
    ],
)
def test_command_line_mistakes(overrides: Overrides, start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Resolver(overrides)
    assert str(caught.value).startswith(start)


@pytest.mark.parametrize(
    ("text", "overrides", "on"),
    [
        ("", Overrides(), False),
        ("select = ['MP912']", Overrides(), False),
        ("preview = true", Overrides(), True),
        ("preview = true", Overrides(preview=False), False),
        ("", Overrides(preview=True), True),
        ("", Overrides(preview=True, select=("MP91",)), True),
        ("select = ['MP92']", Overrides(preview=True), False),
        ("ignore = ['MP912']", Overrides(preview=True), False),
    ],
)
def test_rules_in_preview_are_asked_for(
    here: Path, monkeypatch: pytest.MonkeyPatch, text: str, overrides: Overrides, on: bool
) -> None:
    monkeypatch.setattr(standins.RULES["MP912"], "preview", True)
    pyproject(here, text)
    codes = Resolver(overrides)(here).codes
    assert ("MP912" in codes) == on and "MP001" in codes


def test_a_table_with_an_underscore_is_a_mistake(here: Path) -> None:
    write(here / "pyproject.toml", "[tool.precision_lint]\nselect = ['MP9']\n")
    with pytest.raises(ConfigError, match=r"write \[tool.precision-lint\]"):
        Resolver()(here)


def test_keys_are_fields() -> None:
    keys = {key.replace("-", "_") for key in config.KEYS} - {"extend"}
    assert keys <= set(Settings.__dataclass_fields__)
