"""Which files a run looks at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from precision_lint.config import Overrides, Resolver
from precision_lint.patterns import Patterns
from precision_lint.project import files


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def discover(*paths: str, overrides: Overrides | None = None) -> files.Found:
    return files.discover(map(Path, paths), Resolver(overrides))


def names(*paths: str, overrides: Overrides | None = None) -> list[str]:
    found = discover(*paths, overrides=overrides)
    assert not found.errors
    return [file.name for file in found.files]


def test_directories_are_walked_in_order() -> None:
    touch("b.py", "a/z.pyi", "a/b/c.py", "a/notes.txt", "a-b.py", "a/script", "a/x.pyc")
    assert names(".") == ["a-b.py", "a/b/c.py", "a/z.pyi", "b.py"]


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("src", "src/m.py"),
        ("./src/", "src/m.py"),
        ("src/m.py", "src/m.py"),
        ("src/../src", "src/../src/m.py"),
    ],
)
def test_names_are_as_the_user_wrote_them(argument: str, expected: str) -> None:
    touch("src/m.py")
    assert names(argument) == [expected]


def test_absolute_and_parent_paths(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch("a/m.py", "b/x")
    assert names(str(here / "a")) == [str(here / "a" / "m.py")]
    monkeypatch.chdir("b")
    found = discover("../a").files
    assert [(file.name, file.path) for file in found] == [("../a/m.py", here / "a" / "m.py")]


def test_parent_of_a_link_is_that_of_its_target() -> None:
    touch("there/inner/x.py", "there/a.py", "a.py")
    Path("link").symlink_to("there/inner")
    (file,) = discover("link/../a.py").files
    assert file.path.resolve() == Path("there/a.py").resolve()


def test_a_directory_that_may_not_be_searched_is_no_obstacle(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch("locked/a.py", "b.py")
    for name in ("exists", "is_file"):
        plain = getattr(Path, name)

        def denied(path: Path, plain: Any = plain, **options: Any) -> Any:
            if path.parent.name == "locked":
                raise PermissionError(13, "Permission denied", str(path))
            return plain(path, **options)

        monkeypatch.setattr(Path, name, denied)
    assert names(".") == ["b.py", "locked/a.py"]


def test_each_file_once() -> None:
    touch("src/m.py")
    Path("link.py").symlink_to("src/m.py")
    Path("other").symlink_to("src")
    assert names("link.py", "src", "src/m.py", "other", ".", "./src/m.py") == ["other/m.py"]
    assert names(".", "src/m.py") == ["src/m.py"]  # the file's own name before a link's
    assert names("link.py") == ["link.py"]


def test_named_file_needs_no_suffix() -> None:
    touch("script", "a/script")
    assert names("script", "a/script") == ["a/script", "script"]


def test_links_to_directories_are_not_followed() -> None:
    touch("src/m.py", "elsewhere/n.py")
    Path("src/loop").symlink_to(".")
    Path("src/up").symlink_to("..")
    Path("src/out").symlink_to("../elsewhere")
    Path("src/folder.py").symlink_to("../elsewhere")
    assert names("src") == ["src/m.py"]
    assert names("src/out") == ["src/out/n.py"]  # unless named


def test_broken_links_are_files_that_cannot_be_read() -> None:
    Path("broken.py").symlink_to("nowhere.py")
    Path("loop.py").symlink_to("loop.py")
    Path("broken").symlink_to("nowhere")
    assert names(".") == ["broken.py", "loop.py"]
    assert names("broken", "broken.py", "loop.py") == ["broken", "broken.py", "loop.py"]


def test_a_directory_named_like_a_module_is_a_directory() -> None:
    touch("odd.py/m.py")
    assert names(".") == ["odd.py/m.py"]


def test_missing_path_is_an_error_and_the_rest_is_found() -> None:
    touch("m.py")
    found = discover("nope", "m.py", "m.py/inside", "x" * 300)
    assert [file.name for file in found.files] == ["m.py"]
    assert found.errors[:2] == [
        "nope: no such file or directory; check the path",
        "m.py/inside: no such file or directory; check the path",
    ]
    assert "cannot be read (File name too long); check the path" in found.errors[2]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads everything")
def test_unreadable_directory_is_an_error() -> None:
    touch("a/m.py", "b/n.py")
    Path("a").chmod(0)
    try:
        found = discover(".")
    finally:
        Path("a").chmod(0o755)
    assert [file.name for file in found.files] == ["b/n.py"]
    assert found.errors == [
        "a: cannot be read (Permission denied); make the directory readable or exclude it"
    ]


def test_directory_without_python_is_a_warning() -> None:
    touch("docs/index.rst", "src/m.py")
    found = discover("docs", "src")
    assert found.warnings == ["docs: no Python files; name a directory that has some"]
    assert not found.errors
    assert len(found.files) == 1


# excludes


def test_usual_directories_are_excluded() -> None:
    touch(".venv/a.py", "x/build/a.py", "x/node_modules/y/a.py", "__pycache__/a.py", "x/a.py")
    touch("builder/a.py", "x/venv.py")
    assert names(".") == ["builder/a.py", "x/a.py", "x/venv.py"]


def test_excluded_paths_are_linted_when_named() -> None:
    touch("build/lib/a.py", "build/lib/build/b.py", "c.py")
    assert names("build/lib") == ["build/lib/a.py"]
    assert names("build/lib/build/b.py") == ["build/lib/build/b.py"]
    only_c = Overrides(exclude=("c.py",))
    assert names("c.py", overrides=only_c) == ["c.py"]
    assert "c.py" not in names(".", overrides=only_c)


def test_force_exclude() -> None:
    touch("build/a.py", "c.py", "d.py", ".venv/lib/e.py")
    forced = Overrides(force_exclude=True, extend_exclude=("c.py",))
    assert names("build/a.py", "build", "c.py", "d.py", ".venv/lib", overrides=forced) == ["d.py"]


def test_patterns_of_configuration_and_command_line() -> None:
    touch("a/gen/x.py", "gen/x.py", "a/y_pb2.py", "a/z.py", "build/b.py")
    Path("precision-lint.toml").write_text('exclude = ["/gen"]\nextend-exclude = ["*_pb2.py"]\n')
    assert names(".") == ["a/gen/x.py", "a/z.py", "build/b.py"]
    assert names(".", overrides=Overrides(extend_exclude=("gen/",))) == ["a/z.py", "build/b.py"]
    assert "gen/x.py" in names(".", overrides=Overrides(exclude=("a",)))


def test_patterns_of_a_nested_configuration_are_relative_to_it() -> None:
    touch("a/gen/x.py", "gen/x.py", "a/b/gen/x.py")
    Path("a/precision-lint.toml").write_text('exclude = ["/gen"]\n')
    assert names(".") == ["a/b/gen/x.py", "gen/x.py"]
    assert names("a/b") == ["a/b/gen/x.py"]


def test_excludes_hold_in_a_tree_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch("build/proj/m.py", "build/proj/tests/t.py", "build/proj/.venv/v.py", "w/x")
    monkeypatch.chdir("w")
    skip = Overrides(extend_exclude=("tests",))
    assert names(str(here / "build" / "proj"), overrides=skip) == [
        str(here / "build" / "proj" / "m.py")
    ]


# .gitignore


def test_gitignore_root_and_nested() -> None:
    touch(".git/HEAD", "out/a.py", "src/out/b.py", "src/gen_a.py", "src/gen_keep.py", "src/m.py")
    touch("src/deep/gen_b.py", "src/deep/n.py", "top.py", "src/top.py")
    Path(".gitignore").write_text("# comment\n\nout/\n/top.py\n!\n[z-a]\n")
    Path("src/.gitignore").write_text("gen_*.py\n!gen_keep.py\n")
    Path("src/deep/.gitignore").write_text("!gen_b.py\n")
    expected = ["src/deep/gen_b.py", "src/deep/n.py", "src/gen_keep.py", "src/m.py", "src/top.py"]
    assert names(".") == expected
    assert names("src") == expected  # the repository's own file counts below it
    free = Overrides(respect_gitignore=False)
    assert len(names(".", overrides=free)) == 9


def test_ignored_directory_is_walked_when_named() -> None:
    touch(".git/HEAD", "out/a.py", "out/b_gen.py")
    Path(".gitignore").write_text("out/\n*_gen.py\n")
    assert names(".") == []
    assert names("out") == ["out/a.py", "out/b_gen.py"]
    assert names("out/b_gen.py") == ["out/b_gen.py"]


def test_gitignore_above_counts_within_a_repository_only() -> None:
    touch("repo/m.py")
    Path(".gitignore").write_text("m.py\n")
    assert names("repo") == ["repo/m.py"]
    Path(".git").mkdir()
    assert names("repo") == []


# projects


@pytest.mark.parametrize("marker", files.MARKERS)
def test_project_root_is_the_nearest_marker(here: Path, marker: str) -> None:
    touch("p/pyproject.toml", "p/q/r/m.py", f"p/q/{marker}")
    assert files.project_root(here / "p/q/r/m.py") == here / "p/q"
    assert files.project_root(here / "p/q") == here / "p/q"
    assert discover("p/q/r").files[0].root == here / "p/q"


@pytest.mark.parametrize("file", ["models/__init__.py", "models/ops/__init__.py"])
def test_a_setup_script_inside_of_a_package_marks_no_project(here: Path, file: str) -> None:
    """It builds an operator of the package, or is one of its modules."""
    touch("p/.git/HEAD", "p/models/ops/setup.py", "p/models/ops/net.py", f"p/{file}")
    assert files.project_root(here / "p/models/ops/net.py") == here / "p"
    touch("p/models/ops/pyproject.toml")
    assert files.project_root(here / "p/models/ops/net.py") == here / "p/models/ops"


def test_without_a_marker_the_working_directory_is_the_project(here: Path) -> None:
    touch("a/b/m.py")
    assert files.project_root(here / "a/b/m.py") == here
    assert discover("a").files[0].root == here
    assert discover("a/b/m.py").files[0].root == here


@pytest.mark.parametrize("place", ["home", "above home", "temporary", "repositories", "elsewhere"])
def test_without_a_sign_of_a_project_the_argument_is_the_project(
    here: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch("a/b/m.py")
    if place in ("home", "above home"):
        monkeypatch.setenv("HOME", str(here if place == "home" else here / "somebody"))
    elif place == "temporary":
        monkeypatch.setattr("tempfile.tempdir", str(here))
    elif place == "repositories":
        touch("other/.git/HEAD")
    else:
        monkeypatch.chdir(here.parent)
        monkeypatch.setenv("HOME", str(here.parent))
    assert files.project_root(here / "a/b/m.py") == here / "a/b/m.py"
    assert files.discover([here / "a"], Resolver()).files[0].root == here / "a"


def test_a_copied_tree_without_git_is_the_project_from_anywhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch("tree/requirements.txt", "tree/demo/requirements.txt", "tree/demo/m.py", "else/x.py")
    monkeypatch.chdir(here / "else")
    assert files.project_root(here / "tree/demo/m.py") == here / "tree"
    assert files.project_root(here / "tree") == here / "tree"


def test_a_named_directory_that_holds_the_working_directory_is_the_project(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch("p/a/m.py", "p/b/README.md", "p/b/n.py", "p/c/pyproject.toml", "p/c/o.py")
    monkeypatch.chdir(here / "p/a")
    found = files.discover([Path("..")], Resolver()).files
    assert {file.path.name: file.root for file in found} == {
        "m.py": here / "p", "n.py": here / "p", "o.py": here / "p/c",
    }  # fmt: skip


def test_a_readme_below_the_working_directory_splits_nothing(here: Path) -> None:
    touch("a/README.md", "a/m.py")
    assert files.project_root(here / "a/m.py") == here


def test_a_readme_beside_repositories_is_of_none(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch("README.md", "x/.git/HEAD", "y/m.py")
    monkeypatch.chdir(here / "y")
    assert files.project_root(here / "y/m.py") == here / "y"


def test_a_link_to_a_home_directory_is_one(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch("home/a/m.py")
    (here / "link").symlink_to(here / "home", target_is_directory=True)
    monkeypatch.setenv("HOME", str(here / "link"))
    monkeypatch.chdir(here / "home")
    assert files.project_root(here / "home/a/m.py") == here / "home/a/m.py"


def test_a_folder_that_an_editor_has_open_is_the_project(here: Path) -> None:
    touch("README.md", "a/README.md", "a/b/m.py", "c/pyproject.toml", "c/d/m.py")
    folders = [here, here / "a", here / "c/d"]
    assert files.project_root(here / "a/b/m.py", folders) == here / "a"
    assert files.project_root(here / "c/d/m.py", folders) == here / "c"


def test_below_is_the_whole_project(here: Path) -> None:
    touch("b.py", "a/c.py", "build/d.py", "a/note.txt")
    assert sorted(files.names(here, Resolver()(here))) == ["a/c.py", "b.py"]
    assert files.names(here / "b.py", Resolver()(here)) == ["b.py"]


def test_settings_are_those_beside_the_file() -> None:
    touch("a/m.py", "b/n.py")
    Path("a/precision-lint.toml").write_text("jobs = 5\n")
    assert [file.settings.jobs for file in discover(".").files] == [5, None]


# patterns


@pytest.mark.parametrize(
    ("globs", "path", "is_dir", "verdict"),
    [
        (("build",), "build", True, True),
        (("build",), "x/build/a.py", False, True),
        (("build",), "x/builder/a.py", False, None),
        (("build/",), "x/build", False, None),
        (("build/",), "x/build", True, True),
        (("*.py", "!a.py"), "x/a.py", False, False),
        (("x/*.py",), "x/a.py", False, True),
        (("x/*.py",), "y/x/a.py", False, None),
        ((), "a.py", False, None),
    ],
)
def test_verdicts(
    here: Path, globs: tuple[str, ...], path: str, is_dir: bool, verdict: bool | None
) -> None:
    assert Patterns(here, globs).verdict(here / path, is_dir) is verdict


def test_a_directory_is_not_judged_by_the_names_above_it() -> None:
    base = Path("/srv/build")
    assert Patterns(base, ("build",)).verdict(base, True) is None
    assert Patterns(base, ("build", "*.x")).verdict(base, True) is None
    assert Patterns(Path("/"), ("build",)).verdict(base / "a.py") is True
